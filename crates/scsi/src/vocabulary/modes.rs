//! What mode pages set, and the operations that erase a medium.

/// Current values of changeable mode page fields (SPC-4 section 7.5, SBC-3 section 6.5).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Modes {
    /// Caching page: write cache enabled.
    pub write_cache: bool,
    /// Control page: software write protect.
    pub software_write_protect: bool,
    /// Control page: descriptor format sense.
    pub descriptor_sense: bool,
    /// Control page: queue error management (0, 1 or 3).
    pub queue_error: u8,
    /// Control page: one task set per nexus (TST = 001b).
    pub task_set_per_nexus: bool,
    /// Control page: tasks that another nexus aborted end with TASK ABORTED (TAS).
    pub task_aborted_status: bool,
    /// Read-write error recovery page: thresholds of logical block provisioning are reported (LBPERE).
    pub provisioning_errors: bool,
    /// Logical block provisioning page: its threshold is enabled.
    pub threshold: bool,
    /// Logical block provisioning page: the threshold, in threshold sets; `None`: as configured.
    pub threshold_sets: Option<u32>,
}

/// What a MODE SELECT sets: the fields of the pages that it sends, and no others, whatever their values by
/// then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModesChange {
    /// The new values.
    pub modes: Modes,
    /// The caching page is among its pages.
    pub caching: bool,
    /// The control page is among its pages.
    pub control: bool,
    /// The read-write error recovery page is among its pages.
    pub error_recovery: bool,
    /// The logical block provisioning page is among its pages.
    pub provisioning: bool,
}

impl ModesChange {
    /// A change that sets nothing of these modes yet.
    pub fn none(modes: Modes) -> ModesChange {
        ModesChange { modes, caching: false, control: false, error_recovery: false, provisioning: false }
    }

    /// A change that sets everything.
    pub fn all(modes: Modes) -> ModesChange {
        ModesChange { modes, caching: true, control: true, error_recovery: true, provisioning: true }
    }

    /// These modes with the change applied.
    pub fn of(&self, before: Modes) -> Modes {
        let rest = if self.control { self.modes } else { before };
        let of = |is_set: bool| if is_set { self.modes } else { before };
        let (caching, recovery, provisioning) =
            (of(self.caching), of(self.error_recovery), of(self.provisioning));
        Modes {
            write_cache: caching.write_cache,
            provisioning_errors: recovery.provisioning_errors,
            threshold: provisioning.threshold,
            threshold_sets: provisioning.threshold_sets,
            ..rest
        }
    }
}

/// An operation that erases a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EraseKind {
    /// SANITIZE (SBC-4 section 4.11).
    Sanitize {
        /// AUSE was set: EXIT FAILURE MODE may end its failure.
        unrestricted: bool,
    },
    /// FORMAT UNIT (SBC-3 section 5.3).
    Format,
}
