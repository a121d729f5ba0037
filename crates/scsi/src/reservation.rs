//! Reservations: RESERVE/RELEASE (SPC-2) and PERSISTENT RESERVE (SPC-4 section 5.13).
