//! Gets a Lunette target's CPU time from its admin interface.

use reactor::cpu::{self, Snapshot};
use std::fmt::Debug;
use std::sync::Arc;

/// A connection to the admin interface of a running target.
pub trait Admin: Debug + Send + Sync {
    /// Its answer to GET, or why there is none. Both arrive within bounded time, so that a target that hangs
    /// delays no run.
    ///
    /// # Errors
    /// What is wrong, as a message.
    fn get(&self, path: &str) -> Result<String, String>;
}

/// A running target that reports its CPU time.
#[derive(Clone, Debug)]
pub struct AdminClient {
    admin: Arc<dyn Admin>,
    /// Identifies the target's machine.
    machine: String,
}

impl AdminClient {
    /// Connects to the target, which must answer.
    ///
    /// # Errors
    /// When it does not, or reports no CPU time.
    pub fn open(admin: impl Admin + 'static) -> Result<AdminClient, String> {
        let client = AdminClient { admin: Arc::new(admin), machine: String::new() };
        let Snapshot { machine, .. } = client.snapshot()?;
        Ok(AdminClient { machine, ..client })
    }

    /// Whether the target runs on a different machine.
    pub fn is_elsewhere(&self) -> bool {
        self.machine != cpu::machine()
    }

    /// What the target has used so far, or why that is unknown.
    pub(super) fn snapshot(&self) -> Result<Snapshot, String> {
        serde_json::from_str(&self.admin.get("/v1/cpu")?)
            .map_err(|error| format!("cannot parse the target's answer: {error}"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::sync::Mutex;

    /// A target that gives these answers, one to each request.
    #[derive(Debug)]
    pub(in crate::run) struct Answers(Mutex<std::vec::IntoIter<String>>);

    impl Answers {
        pub(in crate::run) fn new(snapshots: &[&Snapshot]) -> Answers {
            let texts = snapshots.iter().map(|snapshot| serde_json::to_string(snapshot).unwrap());
            Answers(Mutex::new(texts.collect::<Vec<_>>().into_iter()))
        }
    }

    impl Admin for Answers {
        fn get(&self, path: &str) -> Result<String, String> {
            assert_eq!(path, "/v1/cpu");
            self.0.lock().unwrap().next().ok_or_else(|| "it has ended".into())
        }
    }

    #[test]
    fn only_an_interface_that_reports_cpu_time_is_a_target() {
        let now = cpu::snapshot(std::time::Duration::from_secs(1));
        assert!(!AdminClient::open(Answers::new(&[&now])).unwrap().is_elsewhere());
        let far = Snapshot { machine: "another".into(), ..now };
        assert!(AdminClient::open(Answers::new(&[&far])).unwrap().is_elsewhere());
        assert_eq!(AdminClient::open(Answers::new(&[])).unwrap_err(), "it has ended");
        let foreign = Answers(Mutex::new(vec!["{\"pid\":1}".to_owned()].into_iter()));
        assert!(AdminClient::open(foreign).unwrap_err().contains("cannot parse"));
    }
}
