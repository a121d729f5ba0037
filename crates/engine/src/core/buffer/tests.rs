use super::*;
use crate::testing::initiator::{Initiator, Login};
use crate::testing::{HeldStore, Slow, serve};
use std::time::Duration;

const PIECE: u64 = CHUNK_BYTES as u64;
const BLOCK: u32 = 512;

/// What is left of a core's buffers for steps.
struct Room(u64);

impl Room {
    /// Whether the connection gets one more piece.
    fn give(&mut self, share: &mut Share) -> bool {
        let left = self.0.saturating_sub(FIRST_STEPS_BYTES);
        let gives = self.0 >= PIECE && share.may_hold(Purpose::Step, PIECE, left);
        if gives {
            share.bytes.step += PIECE;
            self.0 -= PIECE;
        }
        gives
    }

    fn take(&mut self, share: &mut Share) {
        share.bytes.step -= PIECE;
        self.0 += PIECE;
    }
}

/// Connections that have each, in turn, taken all they can get.
fn filled(room: &mut Room, connections: usize) -> Vec<Share> {
    let mut shares: Vec<Share> = (0..connections).map(|_| Share::default()).collect();
    shares.iter_mut().for_each(|share| while room.give(share) {});
    shares
}

#[test]
fn a_connection_alone_has_all_of_its_share() {
    let mut room = Room(88 << 20);
    assert_eq!(filled(&mut room, 1)[0].bytes.step, SHARE_BYTES);
}

#[test]
fn greedy_connections_leave_buffers_to_each_later_one() {
    let mut room = Room(88 << 20);
    let shares = filled(&mut room, 24);
    let mut late: Vec<Share> = (0..100).map(|_| Share::default()).collect();
    assert!(shares.iter().chain(&late).all(|share| share.bytes.step <= SHARE_BYTES));
    assert!(late.iter_mut().all(|share| room.give(share)));
}

#[test]
fn returned_buffers_even_out_shares() {
    for connections in [2, 8, 24] {
        let mut room = Room(88 << 20);
        let mut shares = filled(&mut room, connections);
        shares.push(Share::default());
        for _ in 0..1000 {
            for share in &mut shares {
                if share.bytes.step > 0 {
                    room.take(share);
                }
                room.give(share);
                room.give(share);
            }
        }
        let bytes = || shares.iter().map(|share| share.bytes.step);
        let (least, most) = (bytes().min().expect("one"), bytes().max().expect("one"));
        assert!(most - least <= 4 * PIECE, "{connections}: {least} to {most}");
    }
}

#[test]
fn a_window_that_was_opened_is_kept_to() {
    for whole in [32 << 20, 40 << 20, 60 << 20, 128 << 20] {
        let mut share =
            Share { bytes: Bytes { unsolicited: 5 * PIECE, ..Bytes::default() }, ..Share::default() };
        let mut left = whole - STEPS_BYTES - FIRST_UNSOLICITED_BYTES;
        for _ in 0..share.window(whole) {
            assert!(left >= PIECE && share.may_hold(Purpose::Unsolicited, PIECE, left), "{whole}");
            share.bytes.unsolicited += PIECE;
            left -= PIECE;
        }
    }
}

/// Sessions that never answer R2Ts block nobody, not even on their own core: others are served without
/// waiting for them to end.
#[test]
fn an_initiator_that_withholds_requested_data_leaves_buffers_to_others() {
    let stores = [HeldStore::new(), HeldStore::new()];
    let (daemon, url) = serve(1, &stores, |config| config.stall_timeout = Duration::from_secs(3600));
    let mut mute: Vec<Slow> = (0..24).map(|n| Slow::login(&url, &format!("mute{n}"))).collect();
    mute.iter_mut().for_each(|slow| slow.write(32, CHUNK_BYTES as usize));
    assert!(mute.iter().all(|slow| slow.asked() > 0));
    assert!(mute.iter().map(Slow::asked).sum::<usize>() < 24 * 32, "they want more than there is");
    // With digests, all data goes through buffers.
    let login = Login::named("other").with_digests();
    let mut other = Initiator::login(&url, &login).expect("a session");
    for bytes in [4096, 65_536, 1 << 20] {
        let data = vec![5; bytes];
        other.write_blocks(1, 0, BLOCK, &data, false).expect("WRITE");
        let read = other.read_blocks(1, 0, (bytes / 512) as u32, BLOCK).expect("READ");
        assert!(read == data, "{bytes}");
    }
    // As soon as they send, all of theirs complete as well.
    for slow in &mut mute {
        while slow.ended < 32 {
            match slow.asked() {
                0 => drop(slow.receive().expect("an R2T or a response")),
                _ => slow.answer().expect("it is sent"),
            }
        }
    }
    daemon.stop().expect("every core ends in order");
}
