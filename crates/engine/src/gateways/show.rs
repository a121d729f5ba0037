//! What a gateway shows of itself: its reading, and the log.

use super::{Gateway, peers};
use crate::readings::GatewayReading;
use cluster::{Access, Machine, Role};
use reactor::io::Io;
use std::sync::PoisonError;
use store::rados::SILENCE;

impl<I: Io> Gateway<I> {
    /// Publishes the status, and logs changes.
    pub(super) fn show(&mut self, machine: &Machine) {
        let status = machine.status();
        let reading = GatewayReading {
            name: self.cluster.gateway.clone(),
            role: match status.role {
                Role::Active | Role::Serving => "active",
                Role::Standby => "standby",
                Role::Transitioning => "transitioning",
            },
            active: status.record.active.as_ref().map(|holder| holder.gateway.clone()),
            serving: peers::serving(&status.record).into_iter().map(str::to_owned).collect(),
            gateways: status.record.gateways.keys().cloned().collect(),
            shut_out: self.shut_out.clone(),
            fault: status.fault.clone(),
        };
        *self.handle.reading.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
        let lun = &self.lun;
        let (role, fault) = &self.shown;
        if status.role != *role {
            match status.role {
                Role::Active if self.access == Access::All => {
                    let epoch = status.record.epoch;
                    tracing::warn!(%lun, epoch, "this gateway is active for the unit, and executes its changes");
                }
                Role::Active => {
                    let epoch = status.record.epoch;
                    tracing::warn!(%lun, epoch, "this gateway is active for the unit");
                }
                Role::Serving => {
                    let changes = status.record.active.map_or("none".to_owned(), |holder| holder.gateway);
                    tracing::warn!(%lun, changes, "this gateway is active for the unit, with others");
                }
                Role::Standby => {
                    let active = status.record.active.map_or("none".to_owned(), |holder| holder.gateway);
                    tracing::warn!(%lun, active, "this gateway is in standby for the unit");
                }
                Role::Transitioning => {}
            }
        }
        let is_silent = |fault: &Option<String>| fault.as_ref().is_some_and(|why| why.ends_with(SILENCE));
        if is_silent(fault) && !is_silent(&status.fault) {
            tracing::info!(%lun, "the cluster answers again");
        }
        match (&status.fault, status.role) {
            (fault, _) if *fault == self.shown.1 => {}
            (None, _) => {}
            // An OSD may be away for a moment.
            (Some(why), _) if is_silent(&status.fault) => tracing::warn!(%lun, "{why}; retrying"),
            (Some(why), Role::Active | Role::Serving) => {
                tracing::error!(%lun, "this gateway is active, but {why}")
            }
            (Some(why), _) => tracing::error!(%lun, "this gateway cannot become active: {why}"),
        }
        self.shown = (status.role, status.fault);
    }
}
