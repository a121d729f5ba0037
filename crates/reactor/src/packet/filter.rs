//! Programs of the classic packet filter (Linux, Documentation/networking/filter.rst) that the kernel runs on frames.

use super::socket::HEADER_BYTES;
use libc::sock_filter;

/// Where a number is in a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its first byte, from the start of the Ethernet header.
    pub at: u16,
    /// How long it is.
    pub width: Width,
}

/// Bytes of a number, which is in network byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 1.
    Byte,
    /// 2.
    Half,
    /// 4.
    Word,
}

/// A requirement for a frame: the bits of a field that are in `mask` equal those of `value`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    /// The field to check.
    pub field: Field,
    /// The bits that matter.
    pub mask: u32,
    /// What they must be.
    pub value: u32,
}

/// Conditions and fields that fit into a program.
pub(super) const CONDITIONS_MAX: usize = 60;

/// A program for a socket.
pub(super) type Program = Vec<sock_filter>;

// Linux, linux/filter.h and linux/if_packet.h.
const PACKET_TYPE: u32 = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE) as u32;
const LINK_HEADER: u32 = libc::SKF_LL_OFF as u32;
const PACKET_OTHERHOST: u32 = 3;

const LOAD: u32 = libc::BPF_LD | libc::BPF_ABS;
const JUMP: u32 = libc::BPF_JMP | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// All of a frame.
const ALL: u32 = u32::MAX;

/// Rejects all frames.
pub(super) fn nothing() -> Program {
    vec![plain(RETURN, 0)]
}

/// Accepts frames for which all conditions hold, and which were sent to this machine: not those that a
/// promiscuous interface sees, nor those of a VLAN without an interface here, nor its own.
pub(super) fn frames(conditions: &[Condition]) -> Program {
    let drop = 2 + 3 * conditions.len() + 1;
    let mut program = vec![
        plain(LOAD | libc::BPF_W, PACKET_TYPE),
        jump(libc::BPF_JGE, PACKET_OTHERHOST, drop as u8 - 2, 0),
    ];
    for Condition { field, mask, value } in conditions {
        let rest = drop - program.len() - 3;
        program.extend([
            plain(LOAD | field.width.code(), u32::from(field.at)),
            plain(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, *mask),
            jump(libc::BPF_JEQ, *value, 0, rest as u8),
        ]);
    }
    program.extend([plain(RETURN, ALL), plain(RETURN, 0)]);
    program
}

/// A number computed from fields, whose remainder selects a frame's socket in a group. The kernel passes a
/// frame to this program without its Ethernet header, which is found at negative offsets; older kernels find
/// nothing else there when a long frame is in pieces.
pub(super) fn spread(fields: &[Field]) -> Program {
    const SUM: u32 = 0;
    /// 2 to the power of 32, divided by the golden ratio (Knuth, The Art of Computer Programming, section 6.4).
    const GOLDEN: u32 = 0x9e37_79b1;
    let mut program = vec![plain(libc::BPF_LD | libc::BPF_IMM, 0), plain(libc::BPF_ST, SUM)];
    for field in fields {
        let at = u32::from(field.at);
        let at = at.checked_sub(HEADER_BYTES).unwrap_or(LINK_HEADER.wrapping_add(at));
        program.extend([
            plain(LOAD | field.width.code(), at),
            plain(libc::BPF_LDX | libc::BPF_MEM, SUM),
            plain(libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X, 0),
            plain(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, GOLDEN),
            plain(libc::BPF_ST, SUM),
        ]);
    }
    program.extend([
        // The upper bits depend on all of the lower ones.
        plain(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 16),
        plain(libc::BPF_RET | libc::BPF_A, 0),
    ]);
    program
}

impl Width {
    fn code(self) -> u32 {
        match self {
            Width::Byte => libc::BPF_B,
            Width::Half => libc::BPF_H,
            Width::Word => libc::BPF_W,
        }
    }
}

fn plain(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Skips this many instructions if the test holds, or does not.
fn jump(test: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (JUMP | test) as u16, jt, jf, k }
}
