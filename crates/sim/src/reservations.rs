//! A model of PERSISTENT RESERVE OUT, from SPC-4 section 5.13 alone, and of RESERVE and RELEASE, from SPC-2
//! section 5.5: the states that each command may have found, for any order of concurrent ones.

use proto::time::Time;

/// RESERVATION TYPE (SPC-4 table 175).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Type {
    WriteExclusive = 1,
    ExclusiveAccess = 3,
    WriteExclusiveRegistrantsOnly = 5,
    ExclusiveAccessRegistrantsOnly = 6,
    WriteExclusiveAllRegistrants = 7,
    ExclusiveAccessAllRegistrants = 8,
}

impl Type {
    pub(crate) const ALL: [Type; 6] = [
        Type::WriteExclusive,
        Type::ExclusiveAccess,
        Type::WriteExclusiveRegistrantsOnly,
        Type::ExclusiveAccessRegistrantsOnly,
        Type::WriteExclusiveAllRegistrants,
        Type::ExclusiveAccessAllRegistrants,
    ];

    fn is_of_all(self) -> bool {
        matches!(self, Type::WriteExclusiveAllRegistrants | Type::ExclusiveAccessAllRegistrants)
    }

    fn is_for_registrants(self) -> bool {
        !matches!(self, Type::WriteExclusive | Type::ExclusiveAccess)
    }

    fn lets_others_read(self) -> bool {
        use Type::{WriteExclusive, WriteExclusiveAllRegistrants, WriteExclusiveRegistrantsOnly};
        matches!(self, WriteExclusive | WriteExclusiveRegistrantsOnly | WriteExclusiveAllRegistrants)
    }
}

/// A service action. Keys are those in the parameter list; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    Register {
        new: u64,
        ignores: bool,
        aptpl: bool,
    },
    Reserve(Type),
    Release(Type),
    Clear,
    Preempt {
        victim: u64,
        kind: Type,
        aborts: bool,
    },
    /// RESERVE.
    Hold,
    /// RELEASE.
    LetGo,
    /// MODE SELECT.
    SetModes {
        write_cache: bool,
    },
    /// A reset of the unit, or the end of the session: RESERVE is released.
    Lose {
        all: bool,
    },
}

/// The outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verdict {
    Good,
    Conflict,
    Check,
    /// It was not executed, and will not be.
    Never,
}

/// The registrations of all initiators, and the reservation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Table {
    /// 0: not registered.
    keys: Vec<u64>,
    /// `None` inside: all registrants hold it.
    held: Option<(Type, Option<usize>)>,
    aptpl: bool,
    /// Who holds the unit by RESERVE.
    reserved: Option<usize>,
    /// A mode parameter; true: as after power on.
    write_cache: bool,
}

impl Table {
    fn lets(&self, initiator: usize, writes: bool) -> bool {
        if self.reserved.is_some_and(|holder| holder != initiator) {
            return false;
        }
        let Some((kind, holder)) = self.held else { return true };
        let is_registered = self.keys[initiator] != 0;
        let is_in = if kind.is_for_registrants() { is_registered } else { holder == Some(initiator) };
        is_in || !writes && kind.lets_others_read()
    }

    fn holds(&self, initiator: usize) -> bool {
        self.held.is_some_and(|(_, holder)| holder.is_none_or(|holder| holder == initiator))
    }

    /// RESERVE or RELEASE while anyone is registered (SPC-4 section 5.13.3): it changes nothing.
    fn suits(&self, from: usize) -> bool {
        let holds = |(kind, holder): (Type, Option<usize>)| kind.is_for_registrants() || holder == Some(from);
        self.keys[from] != 0 && self.held.is_some_and(holds)
    }

    fn reserve(&mut self, from: usize, action: Action) -> Verdict {
        let is_good = match action {
            Action::Lose { all } => {
                self.reserved = self.reserved.filter(|holder| !all && *holder != from);
                self.write_cache |= all;
                true
            }
            _ if self.keys.iter().any(|key| *key != 0) => self.suits(from),
            Action::Hold => *self.reserved.get_or_insert(from) == from,
            _ => {
                self.reserved = self.reserved.filter(|holder| *holder != from);
                true
            }
        };
        if is_good { Verdict::Good } else { Verdict::Conflict }
    }

    fn apply(&mut self, from: usize, key: u64, action: Action) -> Verdict {
        if matches!(action, Action::Hold | Action::LetGo | Action::Lose { .. }) {
            return self.reserve(from, action);
        }
        if let Action::SetModes { write_cache } = action {
            if !self.lets(from, true) {
                return Verdict::Conflict;
            }
            self.write_cache = write_cache;
            return Verdict::Good;
        }
        if self.reserved.is_some() {
            return Verdict::Conflict;
        }
        let own = self.keys[from];
        if let Action::Register { new, ignores, aptpl } = action {
            if !ignores && own != key {
                return Verdict::Conflict;
            }
            if new == 0 {
                self.unregister(from)
            } else {
                self.keys[from] = new
            }
            self.aptpl = aptpl;
            return Verdict::Good;
        }
        if own == 0 || own != key {
            return Verdict::Conflict;
        }
        match action {
            Action::Register { .. }
            | Action::SetModes { .. }
            | Action::Hold
            | Action::LetGo
            | Action::Lose { .. } => {
                unreachable!("see above")
            }
            Action::Reserve(kind) => match self.held {
                None => self.held = Some((kind, (!kind.is_of_all()).then_some(from))),
                Some((held, _)) if held == kind && self.holds(from) => {}
                Some(_) => return Verdict::Conflict,
            },
            Action::Release(kind) => match self.held {
                Some((held, _)) if self.holds(from) => {
                    if held != kind {
                        return Verdict::Check;
                    }
                    self.held = None;
                }
                Some(_) | None => {}
            },
            Action::Clear => {
                self.held = None;
                self.keys.fill(0);
            }
            Action::Preempt { victim, kind, .. } => return self.preempt(from, victim, kind),
        }
        Verdict::Good
    }

    fn unregister(&mut self, initiator: usize) {
        self.keys[initiator] = 0;
        let ends = self.held.is_some_and(|(_, holder)| match holder {
            Some(holder) => holder == initiator,
            None => self.keys.iter().all(|key| *key == 0),
        });
        if ends {
            self.held = None;
        }
    }

    fn preempt(&mut self, from: usize, victim: u64, kind: Type) -> Verdict {
        let takes_over = self.held.is_some_and(|(_, holder)| match holder {
            Some(holder) => self.keys[holder] == victim,
            None => victim == 0,
        });
        if victim == 0 && !takes_over {
            return Verdict::Check;
        }
        let is_victim = |key: u64| key != 0 && (victim == 0 || key == victim);
        if !self.keys.iter().any(|key| is_victim(*key)) {
            return Verdict::Conflict;
        }
        for (initiator, key) in self.keys.iter_mut().enumerate() {
            if is_victim(*key) && !(takes_over && initiator == from) {
                *key = 0;
            }
        }
        if takes_over {
            self.held = Some((kind, (!kind.is_of_all()).then_some(from)));
        }
        Verdict::Good
    }
}

/// A possible history.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Way {
    table: Table,
    /// Outstanding commands that it has executed, with their outcomes.
    done: Vec<(u64, Verdict)>,
}

#[derive(Debug)]
struct ReserveOut {
    id: u64,
    from: usize,
    key: u64,
    action: Action,
    /// Initiators whose commands it aborts, if nothing else happens meanwhile.
    victims: Vec<usize>,
    /// Since when it is known to have reached its target.
    arrived: Option<Time>,
}

/// A medium command.
#[derive(Debug)]
struct Access {
    id: u64,
    from: usize,
    writes: bool,
    may_be_let: bool,
    may_conflict: bool,
    /// The write cache may have been found off, and on.
    may_find: [bool; 2],
    /// How many orders had begun or ended before.
    turns: u64,
}

/// The reservations of a unit.
#[derive(Debug)]
pub(crate) struct Reservations {
    /// In ascending order.
    ways: Vec<Way>,
    orders: Vec<ReserveOut>,
    accesses: Vec<Access>,
    next: u64,
    is_used: bool,
    /// How many orders have begun or ended.
    turns: u64,
    /// They include RESERVE and RELEASE.
    is_classic: bool,
    /// Orders whose outcome nobody knows, and that may be done yet, where gateways do them for each other.
    open: Option<Vec<u64>>,
}

/// Most concurrent orders per unit.
pub(crate) const ORDERS_MAX: usize = 3;
/// The same with those whose outcome nobody knows.
const ORDERS_OPEN_MAX: usize = 5;
/// So many possible histories are shown.
const WAYS_SHOWN: usize = 8;

impl Reservations {
    /// For this many initiators; `is_classic`: they also send RESERVE and RELEASE.
    pub(crate) fn new(initiators: usize, is_classic: bool) -> Reservations {
        let keys = vec![0; initiators];
        let table = Table { keys, held: None, aptpl: false, reserved: None, write_cache: true };
        let ways = vec![Way { table, done: Vec::new() }];
        Reservations {
            ways,
            orders: Vec::new(),
            accesses: Vec::new(),
            next: 0,
            is_used: false,
            turns: 0,
            is_classic,
            open: None,
        }
    }

    /// The same where gateways do orders for each other: one whose outcome nobody knows may be done later.
    pub(crate) fn of_gateways(self) -> Reservations {
        Reservations { open: Some(Vec::new()), ..self }
    }

    /// Takes the orders of which nobody has heard since the last time; [`Reservations::close`] follows for each.
    pub(crate) fn take_open(&mut self) -> Vec<u64> {
        self.open.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether there is room for another order.
    pub(crate) fn has_room(&self) -> bool {
        let most = if self.open.is_some() { ORDERS_OPEN_MAX } else { ORDERS_MAX };
        self.orders.len() < most
    }

    /// Whether RESERVE may be held.
    pub(crate) fn is_classic(&self) -> bool {
        self.is_classic
    }

    /// The keys that initiators may have.
    pub(crate) fn keys(&self) -> Vec<u64> {
        self.ways.first().map(|way| way.table.keys.clone()).unwrap_or_default()
    }

    /// Whether there may be a reservation.
    pub(crate) fn is_held(&self) -> bool {
        self.ways.first().is_some_and(|way| way.table.held.is_some())
    }

    /// An order begins; returns its number.
    pub(crate) fn order(&mut self, from: usize, key: u64, action: Action) -> u64 {
        self.is_used = true;
        self.next += 1;
        self.turns += 1;
        let victims = self.victims(from, action);
        self.orders.iter_mut().for_each(|order| order.victims.clear());
        self.orders.push(ReserveOut { id: self.next, from, key, action, victims, arrived: None });
        let mut fresh = self.ways.clone();
        while let Some(way) = fresh.pop() {
            for order in &self.orders {
                if way.done.iter().all(|(id, _)| *id != order.id) {
                    let mut then = way.clone();
                    let verdict = then.table.apply(order.from, order.key, order.action);
                    then.done.push((order.id, verdict));
                    then.done.sort();
                    if let Err(at) = self.ways.binary_search(&then) {
                        self.ways.insert(at, then.clone());
                        fresh.push(then);
                    }
                }
            }
        }
        self.look();
        self.next
    }

    /// Initiators that are certainly preempted (SPC-4 section 5.13.11.2.7), since nothing else is
    /// outstanding.
    fn victims(&self, from: usize, action: Action) -> Vec<usize> {
        let Action::Preempt { victim, aborts: true, .. } = action else { return Vec::new() };
        if victim == 0 || !self.orders.is_empty() {
            return Vec::new();
        }
        let initiators = 0..self.keys().len();
        let is_victim = |of: &usize| *of != from && self.ways.iter().all(|way| way.table.keys[*of] == victim);
        initiators.filter(is_victim).collect()
    }

    /// An order has ended like this. Returns the initiators whose commands it aborted, and that may no longer
    /// write.
    ///
    /// # Errors
    /// When that is impossible in any order of execution.
    pub(crate) fn ordered(&mut self, id: u64, verdict: Verdict) -> Result<Vec<usize>, String> {
        let Some(at) = self.orders.iter().position(|order| order.id == id) else {
            // The target has been restarted.
            return Ok(Vec::new());
        };
        let victims = std::mem::take(&mut self.orders[at].victims);
        let explains = |way: &Way| way.done.contains(&(id, verdict));
        if !self.ways.iter().any(explains) {
            let before = self.listed();
            return Err(format!(
                "reservation command {id} ended {verdict:?}, which no order explains: {before}"
            ));
        }
        self.ways.retain(explains);
        self.close(id);
        Ok(victims.into_iter().filter(|of| verdict == Verdict::Good && self.keeps_out(*of)).collect())
    }

    /// Its state as text.
    fn listed(&self) -> String {
        let ways: Vec<&Way> = self.ways.iter().take(WAYS_SHOWN).collect();
        format!("{} ways, such as {ways:?}, {:?}", self.ways.len(), self.orders)
    }

    /// Whether an order is MODE SELECT.
    pub(crate) fn sets_modes(&self, id: u64) -> bool {
        let is_it = |order: &ReserveOut| order.id == id && matches!(order.action, Action::SetModes { .. });
        self.orders.iter().any(is_it)
    }

    /// An order was not executed.
    ///
    /// # Errors
    /// When others have seen that it was.
    pub(crate) fn refused(&mut self, id: u64) -> Result<(), String> {
        self.ways.retain(|way| way.done.iter().all(|done| done.0 != id || done.1 == Verdict::Never));
        self.close(id);
        if self.ways.is_empty() {
            return Err(format!("reservation command {id} was refused, and yet done"));
        }
        Ok(())
    }

    /// An order has reached its target.
    pub(crate) fn arrives(&mut self, now: Time, id: u64) {
        if let Some(order) = self.orders.iter_mut().find(|order| order.id == id) {
            order.arrived.get_or_insert(now);
        }
    }

    /// A reset of the unit, or a function that ends commands of these, begun at `began`, is complete: what had reached its target by then
    /// was executed, or never will be.
    pub(crate) fn clear(&mut self, began: Time, is_of: impl Fn(usize) -> bool) {
        let is_ended =
            |order: &&ReserveOut| is_of(order.from) && order.arrived.is_some_and(|arrived| arrived < began);
        let orders: Vec<u64> = self.orders.iter().filter(is_ended).map(|order| order.id).collect();
        if orders.is_empty() {
            return;
        }
        self.change_ways(|way| {
            for id in &orders {
                if way.done.iter().all(|(done, _)| done != id) {
                    way.done.push((*id, Verdict::Never));
                }
            }
            way.done.sort();
        });
    }

    fn change_ways(&mut self, change: impl FnMut(&mut Way)) {
        self.ways.iter_mut().for_each(change);
        self.ways.sort_unstable();
        self.ways.dedup();
    }

    /// An order was executed or not, and, unless gateways execute it for each other, no longer can be.
    pub(crate) fn forget(&mut self, id: u64) {
        match &mut self.open {
            Some(open) => open.push(id),
            None => self.close(id),
        }
    }

    /// An order was executed or not, and no longer can be.
    pub(crate) fn close(&mut self, id: u64) {
        self.turns += 1;
        self.orders.retain(|order| order.id != id);
        self.change_ways(|way| way.done.retain(|(done, _)| *done != id));
    }

    /// The target was restarted.
    pub(crate) fn restarted(&mut self) {
        let orders: Vec<u64> = self.orders.iter().map(|order| order.id).collect();
        orders.into_iter().for_each(|id| self.close(id));
        self.accesses.clear();
        self.change_ways(|way| {
            way.table.reserved = None;
            if !way.table.aptpl {
                way.table.keys.fill(0);
                (way.table.held, way.table.aptpl) = (None, false);
            }
        });
    }

    /// Whether it may not write in any case, and no order is outstanding.
    fn keeps_out(&self, initiator: usize) -> bool {
        self.orders.is_empty() && !self.may_write(initiator)
    }

    /// Whether an initiator may write, in some order of what is outstanding.
    pub(crate) fn may_write(&self, initiator: usize) -> bool {
        self.ways.iter().any(|way| way.table.lets(initiator, true))
    }

    /// A medium command begins; returns its number.
    pub(crate) fn access(&mut self, from: usize, writes: bool) -> u64 {
        if !self.is_used {
            return 0;
        }
        self.next += 1;
        let (may_be_let, may_conflict, may_find) = (false, false, [false; 2]);
        let (id, turns) = (self.next, self.turns);
        self.accesses.push(Access { id, from, writes, may_be_let, may_conflict, may_find, turns });
        let (ways, Some(access)) = (&self.ways, self.accesses.last_mut()) else { return 0 };
        access.look(ways);
        self.next
    }

    /// MODE SENSE has ended, and has found this.
    ///
    /// # Errors
    /// When that cannot be.
    pub(crate) fn sensed(&mut self, id: u64, found: Option<bool>) -> Result<(), String> {
        let Some(at) = self.accesses.iter().position(|access| access.id == id) else { return Ok(()) };
        let access = self.accesses.swap_remove(at);
        let Some(found) = found else { return Ok(()) };
        let is_possible = access.may_find[usize::from(found)];
        if is_possible && self.turns == access.turns && self.orders.is_empty() {
            self.ways.retain(|way| way.table.write_cache == found);
        }
        if is_possible && !self.ways.is_empty() {
            return Ok(());
        }
        Err(format!("{access:?} found a write cache that is {found}, with {}", self.listed()))
    }

    fn look(&mut self) {
        for access in &mut self.accesses {
            access.look(&self.ways);
        }
    }

    /// It has ended: `conflicts`: whether with RESERVATION CONFLICT; `None`: before that was checked.
    ///
    /// # Errors
    /// When it cannot have ended so.
    pub(crate) fn accessed(&mut self, id: u64, conflicts: Option<bool>) -> Result<(), String> {
        let Some(at) = self.accesses.iter().position(|access| access.id == id) else {
            // It began before there was any registration, or the target has been restarted.
            return Ok(());
        };
        let access = self.accesses.swap_remove(at);
        let may = match conflicts {
            Some(true) => access.may_conflict,
            Some(false) => access.may_be_let,
            None => true,
        };
        let is_constant = self.turns == access.turns && self.orders.is_empty();
        if let (true, true, Some(conflicts)) = (may, is_constant, conflicts) {
            // Nothing has changed meanwhile: so this is the state, and no other is possible.
            self.ways.retain(|way| way.table.lets(access.from, access.writes) != conflicts);
        }
        if may && !(is_constant && self.ways.is_empty()) {
            return Ok(());
        }
        Err(format!("{access:?} ended, conflict: {conflicts:?}, with {}", self.listed()))
    }
}

impl Access {
    fn look(&mut self, ways: &[Way]) {
        if self.may_be_let && self.may_conflict && self.may_find == [true; 2] {
            return;
        }
        for way in ways {
            let lets = way.table.lets(self.from, self.writes);
            self.may_be_let |= lets;
            self.may_conflict |= !lets;
            self.may_find[usize::from(way.table.write_cache)] = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTER: Action = Action::Register { new: 7, ignores: false, aptpl: false };

    #[test]
    fn what_two_orders_found_must_fit_one_order_of_them() {
        let mut unit = Reservations::new(2, false);
        for from in [0, 1] {
            let id = unit.order(from, 0, REGISTER);
            unit.ordered(id, Verdict::Good).unwrap();
        }
        let one = unit.order(0, 7, Action::Reserve(Type::WriteExclusive));
        let other = unit.order(1, 7, Action::Reserve(Type::WriteExclusive));
        let write = unit.access(1, true);
        unit.ordered(one, Verdict::Good).unwrap();
        assert!(unit.ordered(other, Verdict::Good).is_err(), "both have it");
        unit.accessed(write, Some(true)).unwrap();
    }

    #[test]
    fn who_holds_a_unit_by_reserve_has_it_alone_until_it_or_a_reset_lets_go() {
        let mut unit = Reservations::new(2, true);
        let done = |unit: &mut Reservations, from, action, verdict| {
            let id = unit.order(from, 0, action);
            unit.ordered(id, verdict)
        };
        done(&mut unit, 0, Action::Hold, Verdict::Good).unwrap();
        done(&mut unit, 1, REGISTER, Verdict::Conflict).unwrap();
        done(&mut unit, 1, Action::LetGo, Verdict::Good).unwrap();
        let (own, other) = (unit.access(0, true), unit.access(1, false));
        unit.accessed(own, Some(false)).unwrap();
        assert!(unit.accessed(other, Some(false)).is_err());
        let lost = unit.order(1, 0, Action::Lose { all: true });
        let other = unit.access(1, true);
        unit.ordered(lost, Verdict::Good).unwrap();
        unit.accessed(other, Some(true)).unwrap();
        assert!(done(&mut unit, 1, Action::Hold, Verdict::Conflict).is_err(), "nobody holds it");
    }

    #[test]
    fn what_a_command_has_found_is_so_until_another_order() {
        for is_found in [false, true] {
            let mut unit = Reservations::new(2, true);
            let order = unit.order(0, 0, Action::Hold);
            // It was aborted.
            unit.forget(order);
            if is_found {
                let write = unit.access(1, true);
                unit.accessed(write, Some(false)).unwrap();
            }
            let write = unit.access(1, true);
            assert_eq!(unit.accessed(write, Some(true)).is_err(), is_found);
        }
    }

    #[test]
    fn what_had_arrived_before_a_reset_is_not_executed_after_it() {
        for (arrived, may_be_done) in [(Time(1), false), (Time(3), true)] {
            let mut unit = Reservations::new(2, false);
            let order = unit.order(0, 0, REGISTER);
            unit.arrives(arrived, order);
            unit.clear(Time(2), |_| true);
            let other = unit.order(1, 0, REGISTER);
            unit.ordered(other, Verdict::Good).unwrap();
            let preempts = unit.order(1, 7, Action::Clear);
            unit.ordered(preempts, Verdict::Good).unwrap();
            let reserves = unit.order(0, 7, Action::Reserve(Type::WriteExclusive));
            assert_eq!(unit.ordered(reserves, Verdict::Good).is_ok(), may_be_done);
        }
    }

    #[test]
    fn who_has_no_reservation_reads_if_the_type_lets_him() {
        for (kind, reads) in [(Type::WriteExclusive, true), (Type::ExclusiveAccess, false)] {
            let mut unit = Reservations::new(2, false);
            for action in [REGISTER, Action::Reserve(kind)] {
                let key = if action == REGISTER { 0 } else { 7 };
                let id = unit.order(0, key, action);
                unit.ordered(id, Verdict::Good).unwrap();
            }
            let (read, write) = (unit.access(1, false), unit.access(1, true));
            assert_eq!(unit.accessed(read, Some(false)).is_ok(), reads);
            assert!(unit.accessed(write, Some(false)).is_err());
            unit.restarted();
            let write = unit.access(1, true);
            unit.accessed(write, Some(false)).unwrap();
        }
    }
}
