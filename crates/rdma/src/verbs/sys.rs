//! Layouts and numbers of libibverbs (`infiniband/verbs.h`) and librdmacm (`rdma/rdma_cma.h`) in rdma-core:
//! ABI 1, unchanged since version 1.1 of libibverbs. Fields have the names used there; structures that only
//! the libraries create end with the last field used here.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// An opaque type.
pub type Opaque = c_void;

#[repr(C)]
pub struct IbvDevice {
    pub ops: [*mut c_void; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
}

pub const IBV_TRANSPORT_IB: c_int = 0;
pub const IBV_TRANSPORT_IWARP: c_int = 1;

/// The calls that `verbs.h` makes from inline functions; the others are kept for old programs.
#[repr(C)]
pub struct IbvContextOps {
    before_poll_cq: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    before_post_send: [*mut c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    behind: [*mut c_void; 5],
}

#[repr(C)]
pub struct IbvContext {
    pub device: *mut IbvDevice,
    pub ops: IbvContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
}

#[repr(C)]
pub struct IbvCompChannel {
    pub context: *mut IbvContext,
    pub fd: c_int,
}

#[repr(C)]
pub struct IbvCq {
    pub context: *mut IbvContext,
}

#[repr(C)]
pub struct IbvQp {
    pub context: *mut IbvContext,
}

#[repr(C)]
pub struct IbvMr {
    pub context: *mut IbvContext,
    pub pd: *mut Opaque,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// As libibverbs lays it out.
#[repr(C)]
pub struct IbvDeviceAttr {
    pub fw_ver: [c_char; 64],
    /// Big-endian.
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: c_int,
    pub max_ee: c_int,
    pub max_rdd: c_int,
    pub max_mw: c_int,
    pub max_raw_ipv6_qp: c_int,
    pub max_raw_ethy_qp: c_int,
    pub max_mcast_grp: c_int,
    pub max_mcast_qp_attach: c_int,
    pub max_total_mcast_qp_attach: c_int,
    pub max_ah: c_int,
    pub max_fmr: c_int,
    pub max_map_per_fmr: c_int,
    pub max_srq: c_int,
    pub max_srq_wr: c_int,
    pub max_srq_sge: c_int,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// Buffers are registered, and invalidated by the peer's messages, by work requests.
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: c_uint = 1 << 21;

/// As libibverbs lays it out.
#[repr(C)]
pub struct IbvPortAttr {
    pub state: c_int,
    pub max_mtu: c_int,
    pub active_mtu: c_int,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvQpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct IbvQpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut IbvCq,
    pub recv_cq: *mut IbvCq,
    pub srq: *mut Opaque,
    pub cap: IbvQpCap,
    pub qp_type: c_int,
    pub sq_sig_all: c_int,
}

pub const IBV_QPT_RC: c_int = 2;
pub const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub const IBV_ACCESS_REMOTE_WRITE: c_int = 1 << 1;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IbvSge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// With the `rdma` member of the union `wr`; that of atomic operations is the longest.
#[repr(C)]
pub struct IbvSendWr {
    pub wr_id: u64,
    pub next: *mut IbvSendWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
    pub opcode: c_int,
    pub send_flags: c_uint,
    pub invalidate_rkey: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub unused: [u64; 9],
}

pub const IBV_WR_RDMA_WRITE: c_int = 0;
pub const IBV_WR_SEND: c_int = 2;
pub const IBV_WR_RDMA_READ: c_int = 4;
pub const IBV_WR_SEND_WITH_INV: c_int = 9;
pub const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub const IBV_SEND_SOLICITED: c_uint = 1 << 2;
pub const IBV_SEND_INLINE: c_uint = 1 << 3;

#[repr(C)]
pub struct IbvRecvWr {
    pub wr_id: u64,
    pub next: *mut IbvRecvWr,
    pub sg_list: *mut IbvSge,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct IbvWc {
    pub wr_id: u64,
    pub status: c_int,
    pub opcode: c_int,
    pub vendor_err: u32,
    pub byte_len: u32,
    pub invalidated_rkey: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

pub const IBV_WC_SUCCESS: c_int = 0;
pub const IBV_WC_WR_FLUSH_ERR: c_int = 5;
pub const IBV_WC_WITH_INV: c_uint = 1 << 3;

#[repr(C)]
pub struct IbvAsyncEvent {
    pub element: *mut c_void,
    pub event_type: c_int,
}

pub const IBV_EVENT_COMM_EST: c_int = 4;
pub const IBV_EVENT_DEVICE_FATAL: c_int = 8;

#[repr(C)]
pub struct RdmaEventChannel {
    pub fd: c_int,
}

#[repr(C, align(8))]
pub struct SockaddrStorage(pub [u8; 128]);

#[repr(C)]
pub struct RdmaAddr {
    pub src: SockaddrStorage,
    pub dst: SockaddrStorage,
    pub ibaddr: [u64; 5],
}

#[repr(C)]
pub struct RdmaRoute {
    pub addr: RdmaAddr,
    pub path_rec: *mut Opaque,
    pub num_paths: c_int,
}

#[repr(C)]
pub struct RdmaCmId {
    pub verbs: *mut IbvContext,
    pub channel: *mut RdmaEventChannel,
    pub context: *mut c_void,
    pub qp: *mut IbvQp,
    pub route: RdmaRoute,
    pub ps: c_int,
    pub port_num: u8,
}

pub const RDMA_PS_TCP: c_int = 0x0106;
pub const RDMA_OPTION_ID: c_int = 0;
pub const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub const RDMA_OPTION_ID_AFONLY: c_int = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct RdmaConnParam {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}

/// With the `conn` member of the union `param`, which is the shorter one.
#[repr(C)]
pub struct RdmaCmEvent {
    pub id: *mut RdmaCmId,
    pub listen_id: *mut RdmaCmId,
    pub event: c_int,
    pub status: c_int,
    pub conn: RdmaConnParam,
}

pub const RDMA_CM_EVENT_CONNECT_REQUEST: c_int = 4;
pub const RDMA_CM_EVENT_CONNECT_ERROR: c_int = 6;
pub const RDMA_CM_EVENT_UNREACHABLE: c_int = 7;
pub const RDMA_CM_EVENT_REJECTED: c_int = 8;
pub const RDMA_CM_EVENT_ESTABLISHED: c_int = 9;
pub const RDMA_CM_EVENT_DISCONNECTED: c_int = 10;
pub const RDMA_CM_EVENT_DEVICE_REMOVAL: c_int = 11;
pub const RDMA_CM_EVENT_ADDR_CHANGE: c_int = 14;

/// Sizes and offsets that a C compiler uses for rdma-core's headers (x86-64 and AArch64, Debian's rdma-core
/// 44).
#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    macro_rules! laid_out {
        ($($structure:ident { $($field:ident: $offset:literal),* } $size:literal)*) => {
            $(
                $(assert_eq!(offset_of!($structure, $field), $offset, concat!(stringify!($structure), ".", stringify!($field)));)*
                assert_eq!(size_of::<$structure>(), $size, stringify!($structure));
            )*
        };
    }

    #[test]
    fn what_the_libraries_make_is_read_where_they_have_put_it() {
        laid_out! {
            IbvContextOps { poll_cq: 88, req_notify_cq: 96, post_send: 200, post_recv: 208 } 256
            IbvMr { addr: 16, lkey: 36, rkey: 40 } 48
            IbvCompChannel { fd: 8 } 16
            IbvWc { status: 8, opcode: 12, byte_len: 20, invalidated_rkey: 24, wc_flags: 36, dlid_path_bits: 45 } 48
            IbvAsyncEvent { event_type: 8 } 16
            RdmaEventChannel { fd: 0 } 4
            RdmaAddr { dst: 128 } 296
            RdmaRoute { path_rec: 296, num_paths: 304 } 312
            RdmaConnParam { responder_resources: 9, initiator_depth: 10, rnr_retry_count: 13, qp_num: 16 } 24
        }
        assert_eq!((offset_of!(IbvDevice, transport_type), offset_of!(IbvDevice, name)), (20, 24));
        let context = (offset_of!(IbvContext, ops), offset_of!(IbvContext, cmd_fd));
        assert_eq!((context, offset_of!(IbvContext, async_fd)), ((8, 264), 268));
        assert_eq!((offset_of!(RdmaCmId, context), offset_of!(RdmaCmId, route)), (16, 32));
        assert_eq!((offset_of!(RdmaCmId, ps), offset_of!(RdmaCmId, port_num)), (344, 348));
        assert_eq!((offset_of!(RdmaCmEvent, event), offset_of!(RdmaCmEvent, status)), (16, 20));
        assert_eq!(offset_of!(RdmaCmEvent, conn), 24);
    }

    #[test]
    fn what_the_libraries_read_is_as_they_have_it() {
        laid_out! {
            IbvQpCap { max_inline_data: 16 } 20
            IbvQpInitAttr { cap: 32, qp_type: 52, sq_sig_all: 56 } 64
            IbvSge { length: 8, lkey: 12 } 16
            IbvSendWr { num_sge: 24, opcode: 28, send_flags: 32, invalidate_rkey: 36, remote_addr: 40, rkey: 48 } 128
            IbvRecvWr { num_sge: 24 } 32
            IbvDeviceAttr {
                max_qp_wr: 112, device_cap_flags: 116, max_sge_rd: 124, max_cqe: 132, max_qp_rd_atom: 144,
                max_qp_init_rd_atom: 156, max_srq: 212, max_srq_wr: 216, phys_port_cnt: 227
            } 232
            IbvPortAttr {
                active_mtu: 8, max_msg_sz: 20, lid: 34, active_speed: 44, phys_state: 45, link_layer: 46,
                port_cap_flags2: 48
            } 52
        }
    }
}
