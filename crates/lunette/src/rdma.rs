//! `lunette rdma`: the RDMA devices of this machine, and their abilities.

use crate::Failure;
use rdma::verbs::{DeviceFacts, LinkLayer, PortFacts, PortState, Transport, Unknown, survey};
use std::fmt::{self, Write as _};

/// Queries them; returns what to print, or what is missing.
pub(crate) fn run() -> Result<String, Failure> {
    let devices = survey().map_err(Failure::failed)?;
    Ok(text(&devices))
}

fn text(devices: &[Result<DeviceFacts, Unknown>]) -> String {
    let mut out = String::new();
    if devices.is_empty() {
        out.push_str(
            "This machine has no RDMA device. iSER and SRP are served without one, by iWARP in user space; over \
             Ethernet, `rdma link add rxe0 type rxe netdev eth0` creates one in software.\n",
        );
    }
    for device in devices {
        // Writing to a string cannot fail.
        let _ = match device {
            Ok(facts) => write_device(&mut out, facts),
            Err(unknown) => writeln!(out, "{}: {}", unknown.name, unknown.error),
        };
    }
    out
}

fn write_device(out: &mut String, facts: &DeviceFacts) -> fmt::Result {
    let firmware = match facts.firmware.as_str() {
        "" => String::new(),
        version => format!(", firmware {version}"),
    };
    writeln!(out, "{}: {}, GUID {:016x}{firmware}", facts.name, protocol(facts), facts.node_guid)?;
    for port in &facts.ports {
        let layer = match port.link_layer {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unknown link",
        };
        writeln!(
            out,
            "  port {}: {}, {layer}, MTU {} bytes",
            port.number,
            state(port.state),
            port.mtu_bytes
        )?;
    }
    writeln!(out, "  queue pairs: {}, each with {} work requests", facts.queue_pairs, facts.work)?;
    writeln!(
        out,
        "  scatter/gather entries of a work request: {}, of an RDMA Read: {}; completion queues of {} entries",
        facts.places, facts.read_places, facts.completions
    )?;
    writeln!(
        out,
        "  RDMA Reads at a time: {} as responder, {} as initiator",
        facts.reads_served, facts.reads_made
    )?;
    let inline = facts.inline_bytes.map_or("unknown".to_string(), |bytes| format!("{bytes} bytes and more"));
    writeln!(out, "  inline data: {}", if facts.inline_bytes == Some(0) { "none".into() } else { inline })?;
    let can = |can: bool| if can { "yes" } else { "no" };
    writeln!(
        out,
        "  send with invalidate: {}, fast registration: {}, shared receive queues: {}",
        can(facts.send_with_invalidate),
        can(facts.fast_registration),
        match facts.shared_receives {
            0 => "no".to_string(),
            receives => format!("{receives} receives"),
        }
    )?;
    writeln!(out, "  lunette serve --rdma: {}", usable(facts))
}

fn protocol(facts: &DeviceFacts) -> &'static str {
    let is_ethernet = facts.ports.iter().any(|port: &PortFacts| port.link_layer == LinkLayer::Ethernet);
    match facts.transport {
        Transport::InfiniBand if is_ethernet => "RoCE",
        Transport::InfiniBand => "InfiniBand",
        Transport::Iwarp => "iWARP",
        Transport::Other => "another transport",
    }
}

fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "down",
        PortState::Init => "initializing",
        PortState::Armed => "armed",
        PortState::Active => "active",
        PortState::ActiveDefer => "active, deferred",
        PortState::Unknown => "in an unknown state",
    }
}

/// Whether the daemon uses it, or why not.
fn usable(facts: &DeviceFacts) -> &'static str {
    match facts.transport {
        Transport::InfiniBand | Transport::Iwarp
            if !facts.ports.iter().any(|port| port.state == PortState::Active) =>
        {
            "once a port is active"
        }
        Transport::InfiniBand => "yes",
        Transport::Iwarp => {
            "only for portals with rdma = \"only\"; others serve iWARP initiators by iWARP in user space"
        }
        Transport::Other => "no",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rxe() -> DeviceFacts {
        let port = PortFacts {
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            mtu_bytes: 1024,
        };
        DeviceFacts {
            name: "rxe0".into(),
            transport: Transport::InfiniBand,
            node_guid: 0x5054_00ff_fe12_3456,
            firmware: String::new(),
            ports: vec![port],
            queue_pairs: 1_048_560,
            work: 1_048_576,
            completions: 32_767,
            places: 32,
            read_places: 32,
            reads_served: 128,
            reads_made: 128,
            inline_bytes: Some(256),
            send_with_invalidate: true,
            fast_registration: true,
            shared_receives: 1_048_576,
        }
    }

    #[test]
    fn a_device_is_described_in_words() {
        let expected = "\
rxe0: RoCE, GUID 505400fffe123456
  port 1: active, Ethernet, MTU 1024 bytes
  queue pairs: 1048560, each with 1048576 work requests
  scatter/gather entries of a work request: 32, of an RDMA Read: 32; completion queues of 32767 entries
  RDMA Reads at a time: 128 as responder, 128 as initiator
  inline data: 256 bytes and more
  send with invalidate: yes, fast registration: yes, shared receive queues: 1048576 receives
  lunette serve --rdma: yes
";
        assert_eq!(text(&[Ok(rxe())]), expected);
    }

    #[test]
    fn what_a_device_lacks_is_shown_too() {
        let siw = DeviceFacts {
            transport: Transport::Iwarp,
            firmware: "1.2".into(),
            inline_bytes: Some(0),
            shared_receives: 0,
            send_with_invalidate: false,
            ..rxe()
        };
        let listed = text(&[Ok(siw)]);
        for expected in [
            "iWARP, GUID 505400fffe123456, firmware 1.2\n",
            "inline data: none\n",
            "send with invalidate: no, fast registration: yes, shared receive queues: no\n",
            "--rdma: only for portals with rdma = \"only\"",
        ] {
            assert!(listed.contains(expected), "{expected} is missing in:\n{listed}");
        }
        assert!(text(&[]).contains("no RDMA device"));
    }
}
