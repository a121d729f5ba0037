//! How a world is run: one event after another, until something holds, or its time has come.

use crate::net::{Event, Request, Shared};
use proto::time::Time;

/// A world.
pub(crate) trait Play {
    fn net(&self) -> &Shared;

    /// The longest time between two faults of the network; `None`: there are none any more.
    fn fault_micros(&self) -> Option<u64>;

    /// A host has its turn.
    ///
    /// # Errors
    /// When something is not as it must be.
    fn turn(&mut self, host: usize) -> Result<(), String>;

    /// A request of a host continues.
    ///
    /// # Errors
    /// When something is not as it must be.
    fn go(&mut self, host: usize, request: Request) -> Result<(), String>;

    /// The second daemon is killed, or restarted.
    ///
    /// # Errors
    /// When something is not as it must be.
    fn back(&mut self) -> Result<(), String>;

    /// A step of what gateways have to do with.
    ///
    /// # Errors
    /// When something is not as it must be.
    fn step(&mut self, number: u64) -> Result<(), String>;

    /// Plans the next fault of the network.
    fn plan_fault(&self) {
        let Some(micros) = self.fault_micros() else { return };
        let mut net = self.net().borrow_mut();
        let at = net.now.after(net.nanos(0, micros * 1000));
        net.at(at, Event::Fault);
    }

    /// Runs until this holds after a turn; returns whether it did before this time.
    ///
    /// # Errors
    /// When something is not as it must be.
    fn run_until(&mut self, until: Time, mut is_done: impl FnMut(&mut Self) -> bool) -> Result<bool, String> {
        loop {
            let event = self.net().borrow_mut().next(until);
            let Some(event) = event else { return Ok(false) };
            match event {
                Event::Turn { host } => {
                    let begins = self.net().borrow_mut().begins(host);
                    if begins {
                        self.turn(host)?;
                        if is_done(self) {
                            return Ok(true);
                        }
                    }
                }
                Event::Go { host, request } => self.go(host, request)?,
                Event::Arrive { socket } => {
                    let waits = self.net().borrow_mut().arrive(socket);
                    if let Some((host, request)) = waits {
                        self.go(host, request)?;
                    }
                }
                Event::Land { flight } => {
                    let waits = self.net().borrow_mut().land(flight);
                    if let Some((host, request)) = waits {
                        self.go(host, request)?;
                    }
                }
                Event::Back => self.back()?,
                Event::Step { number } => self.step(number)?,
                Event::Fault => {
                    if self.fault_micros().is_some() {
                        self.net().borrow_mut().fault();
                        self.plan_fault();
                    }
                }
            }
        }
    }
}
