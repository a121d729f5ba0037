//! Text requests of the full feature phase (RFC 7143 section 11.10 and appendix C).

use super::{Access, Negotiated, SendTargets, TargetRecord};
use crate::iscsi::keys::{self, Key, Senders};
use crate::iscsi::text;
use std::net::{IpAddr, SocketAddr};
use wire::iscsi::Stage;

/// Answers a complete text request. A refusal changes nothing: the error is the reason, and the request is to
/// be rejected.
pub fn text_request(
    negotiated: &mut Negotiated,
    access: &dyn Access,
    from: SocketAddr,
    portal: SocketAddr,
    text: &[u8],
) -> Result<Vec<u8>, String> {
    let pairs = text::pairs(text).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    let mut max_recv = negotiated.max_recv_initiator;
    let mut alias = negotiated.session.alias.clone();
    let mut seen: Vec<&str> = Vec::with_capacity(pairs.len());
    for (name, value) in pairs.iter().copied() {
        if seen.contains(&name) {
            return Err(format!("{name} was sent twice"));
        }
        seen.push(name);
        let Some(rule) = keys::find(name) else {
            text::append(&mut out, name, "NotUnderstood");
            continue;
        };
        if !rule.allowed_in(Stage::FULL_FEATURE) || rule.senders == Senders::Target {
            return Err(format!("{name} in the full feature phase"));
        }
        match rule.key {
            Key::SendTargets if pairs.len() > 1 => return Err("SendTargets is not alone".to_string()),
            Key::SendTargets => send_targets(negotiated, access, from, portal, value, &mut out),
            Key::MaxRecvDataSegmentLength => {
                max_recv = rule.number(value).ok_or_else(|| format!("{name} is out of bounds"))?;
            }
            Key::InitiatorAlias => alias = Some(value.to_string()),
            _ => return Err(format!("{name} in the full feature phase")),
        }
    }
    negotiated.max_recv_initiator = max_recv;
    negotiated.session.alias = alias;
    Ok(out)
}

/// A normal session may query only its own target.
fn send_targets(
    negotiated: &Negotiated,
    access: &dyn Access,
    from: SocketAddr,
    portal: SocketAddr,
    value: &str,
    out: &mut Vec<u8>,
) {
    let own = negotiated.session.target.as_deref();
    let which = match (value, own) {
        ("All", None) => SendTargets::All,
        ("", Some(own)) => SendTargets::One(own),
        ("All", Some(_)) | ("", None) => return text::append(out, "SendTargets", "Reject"),
        (name, None) => SendTargets::One(name),
        (name, Some(own)) if name == own => SendTargets::One(own),
        (_, Some(_)) => return,
    };
    for TargetRecord { name, portals } in
        access.send_targets(&negotiated.session.initiator, from, portal, which)
    {
        text::append(out, "TargetName", name);
        for (address, group) in portals {
            text::append(out, "TargetAddress", format!("{},{group}", shown(address)));
        }
    }
}

/// An address in the format of section 13.8: without a zone, and IPv4 as IPv4.
fn shown(address: SocketAddr) -> String {
    let port = address.port();
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => format!("{ip}:{port}"),
        IpAddr::V6(ip) => format!("[{ip}]:{port}"),
    }
}
