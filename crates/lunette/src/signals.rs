//! Signals: INT, TERM and QUIT shut the daemon down, HUP reloads its file; no other signal that a process can
//! catch ends it.

use crate::{INTERRUPTED, interrupts_of_tools};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::{flag, low_level};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

/// Signals of signal(7) whose default is to end the process, though they neither report a fault of it nor
/// request its end: those of terminals, timers, limits and power, and whatever users send. (SIGPIPE is
/// ignored from the start.)
const BYSTANDERS: [i32; 11] = {
    use signal_hook::consts::*;
    [SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO, SIGXCPU, SIGXFSZ, STACK_FAULT, POWER]
};
/// Linux's SIGSTKFLT and SIGPWR, for which the library has no names.
const STACK_FAULT: i32 = 16;
const POWER: i32 = 30;
/// Real-time signals that are not the C library's own.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// The signals of a daemon, caught as soon as this exists.
pub(crate) struct DaemonSignals {
    signals: Signals,
    /// Once it is set, the next signal that requests the end ends the process at once.
    stopping: Arc<AtomicBool>,
}

/// Catches signals: before anything is served, so that none is lost.
pub(crate) fn catch() -> io::Result<DaemonSignals> {
    let stopping = Arc::new(AtomicBool::new(false));
    let ends = [SIGINT, SIGTERM, SIGQUIT];
    for signal in ends {
        flag::register_conditional_shutdown(signal, INTERRUPTED, Arc::clone(&stopping))?;
    }
    let signals = Signals::new(ends)?;
    // Signals that cannot be caught are left alone: valgrind reserves the last one.
    BYSTANDERS.into_iter().chain(REAL_TIME).for_each(|signal| _ = signals.add_signal(signal));
    Ok(DaemonSignals { signals, stopping })
}

/// Receives the first interrupt of a tool; the next one ends the process at once.
pub(crate) fn interrupts() -> io::Result<Receiver<()>> {
    let stopping = Arc::new(AtomicBool::new(false));
    let ends = interrupts_of_tools()?;
    for signal in &ends {
        flag::register_conditional_shutdown(*signal, INTERRUPTED, Arc::clone(&stopping))?;
    }
    let mut signals = Signals::new(ends)?;
    let (sender, receiver) = channel();
    thread::Builder::new().name("signals".into()).spawn(move || {
        signals.forever().next();
        stopping.store(true, Ordering::SeqCst);
        // If it is no longer waited for, the process is ending anyway.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// What a signal requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SignalRequest {
    /// The end.
    End,
    /// A reload of the configuration file.
    Reload,
}

impl DaemonSignals {
    /// Waits for a signal that requests the end, where nothing can be reloaded.
    pub(crate) fn wait(&mut self) {
        while self.next() == SignalRequest::Reload {
            tracing::warn!("SIGHUP is ignored: there is no configuration file to reload");
        }
    }

    /// Waits for a signal that requests something.
    pub(crate) fn next(&mut self) -> SignalRequest {
        for signal in self.signals.forever() {
            match signal {
                SIGINT | SIGTERM | SIGQUIT => break,
                SIGHUP => return SignalRequest::Reload,
                other => {
                    let name = low_level::signal_name(other)
                        .map_or_else(|| format!("signal {other}"), str::to_owned);
                    tracing::warn!("{name} is ignored: use SIGTERM, SIGINT or SIGQUIT to stop the daemon");
                }
            }
        }
        self.stopping.store(true, Ordering::SeqCst);
        SignalRequest::End
    }
}
