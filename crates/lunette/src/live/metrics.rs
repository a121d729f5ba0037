//! The daemon's counters for Prometheus; docs/metrics.md lists names and meanings.

use super::readings;
use super::tally::{Reading, Tally};
use admin::Format;
use engine::{CoreReading, Counts, Meters, Moved, SessionSummary, StoreState, UnitReading, bound_us};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;

/// A sample's labels.
type Labels<'a> = Vec<(&'static str, &'a str)>;

/// The contents of one answer.
#[derive(Debug)]
struct Scrape {
    units: Vec<UnitReading>,
    cores: Vec<CoreReading>,
    tally: Reading,
    /// If they were requested.
    sessions: Vec<SessionSummary>,
}

/// All metrics, with those of single sessions.
pub(super) fn text(meters: &Meters, tally: &Tally, sessions: Vec<SessionSummary>, format: Format) -> String {
    let scrape = Scrape { units: meters.units(), cores: meters.cores(), tally: tally.read(), sessions };
    let mut registry = Registry::with_prefix("lunette");
    registry.register_collector(Box::new(scrape));
    let mut written = String::new();
    let result = match format {
        Format::OpenMetrics => text::encode(&mut written, &registry),
        Format::Prometheus => prometheus_text::encode(&mut written, &registry),
    };
    result.expect("a string takes what is written");
    written
}

/// Names of counters, with their values.
struct Names {
    commands: &'static str,
    bytes: &'static str,
    duration: &'static str,
    errors: &'static str,
    of: &'static str,
}

const OF_LUNS: Names = Names {
    commands: "commands",
    bytes: "bytes",
    duration: "command_duration_seconds",
    errors: "errors",
    of: "a LUN",
};

const OF_SESSIONS: Names = Names {
    commands: "session_commands",
    bytes: "session_bytes",
    duration: "session_command_duration_seconds",
    errors: "session_errors",
    of: "a session",
};

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        begin(encoder, "build", "The running daemon", MetricType::Info)?
            .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
        let luns: Vec<(Labels<'_>, &Counts)> =
            self.units.iter().map(|unit| (vec![("lun", unit.name.as_str())], &unit.counts)).collect();
        counts(encoder, &OF_LUNS, &luns)?;
        self.luns(encoder)?;
        self.cores(encoder)?;
        self.daemon(encoder)?;
        let ids: Vec<String> = self.sessions.iter().map(|session| session.id.to_string()).collect();
        let of = |(session, id): (&'_ SessionSummary, &'_ String)| {
            let target = session.target.as_deref().unwrap_or_default().to_owned();
            (id.clone(), session.initiator.clone(), target)
        };
        let named: Vec<_> = self.sessions.iter().zip(&ids).map(of).collect();
        let sessions: Vec<(Labels<'_>, &Counts)> = named
            .iter()
            .zip(&self.sessions)
            .map(|((id, initiator, target), session)| {
                let labels = vec![("session", &**id), ("initiator", &**initiator), ("target", &**target)];
                (labels, &session.counts)
            })
            .collect();
        if sessions.is_empty() { Ok(()) } else { counts(encoder, &OF_SESSIONS, &sessions) }
    }
}

impl Scrape {
    fn luns(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&UnitReading) -> Option<u64>| {
            let mut family = begin(encoder, name, help, MetricType::Gauge)?;
            for unit in &self.units {
                if let Some(value) = value(unit) {
                    family.encode_family(&[("lun", unit.name.as_str())])?.encode_gauge(&value)?;
                }
            }
            Ok(())
        };
        gauge("lun_size_bytes", "Size of a LUN", &|unit| unit.size_bytes)?;
        gauge("lun_used_bytes", "Space that the store of a thin LUN uses, where that is known", &|unit| {
            unit.used_bytes
        })?;
        gauge("lun_connections", "Open connections to the NBD server of a LUN", &|unit| {
            unit.connections.map(|count| count as u64)
        })?;
        gauge("store_up", "Whether the store of a LUN is open", &|unit| {
            Some(u64::from(unit.state == StoreState::Open))
        })?;
        gauge("threshold_reached", "Whether a thin LUN uses as much as its warn_at", &|unit| {
            unit.threshold_reached.map(u64::from)
        })?;
        let help = "Asymmetric access state of a LUN through a portal group, numbered as in SPC-4";
        let mut family = begin(encoder, "lun_port_group_state", help, MetricType::Gauge)?;
        for unit in &self.units {
            for (group, state) in &unit.groups {
                let labels = [("lun", unit.name.as_str()), ("group", &group.to_string())];
                family.encode_family(&labels)?.encode_gauge(&u64::from(state.code()))?;
            }
        }
        self.gateways(encoder)
    }

    fn gateways(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let shared = || {
            let of = |unit: &'_ UnitReading| Some((unit.name.clone(), unit.gateway.clone()?));
            self.units.iter().filter_map(of)
        };
        let help = "Whether a gateway is active for a shared LUN, as far as this one knows";
        let mut family = begin(encoder, "lun_gateway_active", help, MetricType::Gauge)?;
        for (lun, gateway) in shared() {
            for name in &gateway.gateways {
                let is_active = gateway.serving.contains(name);
                let labels = [("lun", lun.as_str()), ("gateway", name.as_str())];
                family.encode_family(&labels)?.encode_gauge(&u64::from(is_active))?;
            }
        }
        let help = "Seconds since this gateway last had the cluster fence another one for a LUN";
        let mut family = begin(encoder, "lun_gateway_fence_age_seconds", help, MetricType::Gauge)?;
        for (lun, gateway) in shared() {
            if let Some((_, at)) = gateway.shut_out.last() {
                family.encode_family(&[("lun", lun.as_str())])?.encode_gauge(&at.elapsed().as_secs())?;
            }
        }
        Ok(())
    }

    fn cores(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.cores.iter().map(|core| core.core.to_string()).collect();
        let help = "How a core spent its time";
        let mut family = begin(encoder, "core_seconds", help, MetricType::Counter)?;
        for (core, number) in self.cores.iter().zip(&numbers) {
            for (state, time) in [("busy", core.busy), ("polling", core.polling), ("asleep", core.asleep)] {
                let labels = [("core", number.as_str()), ("state", state)];
                count(&mut family, &labels, time.as_secs_f64())?;
            }
        }
        let mut gauge = |name: &str, help: &str, value: &dyn Fn(&CoreReading) -> u64| {
            let mut family = begin(encoder, name, help, MetricType::Gauge)?;
            for (core, number) in self.cores.iter().zip(&numbers) {
                family.encode_family(&[("core", number.as_str())])?.encode_gauge(&value(core))?;
            }
            Ok(())
        };
        gauge("tasks", "Commands in flight, except those answered directly from memory", &|core| core.tasks)?;
        gauge("buffers_bytes", "I/O buffers of a core in use", &|core| core.buffer_bytes)?;
        gauge("buffers_max_bytes", "I/O buffers of a core in total", &|core| core.buffer_max_bytes)
    }

    fn daemon(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Reading { sessions, refused, reloads, last_reload_done } = &self.tally;
        let mut family = begin(encoder, "sessions", "Sessions, and initiators of AoE", MetricType::Gauge)?;
        for (transport, sessions) in sessions {
            family.encode_family(&[("transport", *transport)])?.encode_gauge(sessions)?;
        }
        let mut counter = |name: &str, help: &str, label: &str, counted: &[(&str, u64)]| {
            let mut family = begin(encoder, name, help, MetricType::Counter)?;
            counted.iter().try_for_each(|(of, number)| count(&mut family, &[(label, *of)], *number as f64))
        };
        counter("logins_refused", "Logins that were refused, or not completed", "reason", refused)?;
        counter("reloads", "Reloads of the configuration file", "outcome", reloads)?;
        let help = "Whether the last reload succeeded";
        let mut family = begin(encoder, "reload_last_successful", help, MetricType::Gauge)?;
        family.encode_gauge(&u64::from(*last_reload_done))
    }
}

/// Commands that have ended, with these labels.
fn counts(encoder: &mut DescriptorEncoder<'_>, names: &Names, all: &[(Labels<'_>, &Counts)]) -> fmt::Result {
    let Names { commands, bytes, duration, errors, of } = names;
    let help = format!("Commands of {of} that have ended");
    let mut family = begin(encoder, commands, &help, MetricType::Counter)?;
    for (labels, counts) in all {
        let [read, write] = [&counts.read, &counts.write].map(Moved::commands);
        for (direction, number) in [("read", read), ("write", write), ("other", counts.other)] {
            count(&mut family, &with(labels, "direction", direction)[..], number as f64)?;
        }
    }
    let help = format!("Bytes that commands of {of} have moved");
    let mut family = begin(encoder, bytes, &help, MetricType::Counter)?;
    for (labels, counts) in all {
        for (direction, moved) in directions(counts) {
            count(&mut family, &with(labels, "direction", direction)[..], moved.bytes as f64)?;
        }
    }
    let help = format!("Latency of successful READs and WRITEs of {of}");
    let mut family = begin(encoder, duration, &help, MetricType::Histogram)?;
    for (labels, counts) in all {
        for (direction, moved) in directions(counts) {
            let labels = with(labels, "direction", direction);
            histogram(family.encode_family(&&labels[..])?, moved)?;
        }
    }
    let help = format!("Commands of {of} that failed or were aborted");
    let mut family = begin(encoder, errors, &help, MetricType::Counter)?;
    for (labels, counts) in all {
        for (failure, number) in counts.errors() {
            count(&mut family, &with(labels, "reason", readings::name(failure))[..], number as f64)?;
        }
    }
    Ok(())
}

/// The same with one more label.
fn with<'a>(labels: &Labels<'a>, name: &'static str, value: &'a str) -> Labels<'a> {
    labels.iter().copied().chain([(name, value)]).collect()
}

fn directions(counts: &Counts) -> [(&'static str, &Moved); 2] {
    [("read", &counts.read), ("write", &counts.write)]
}

fn histogram(mut encoder: MetricEncoder<'_>, moved: &Moved) -> fmt::Result {
    let bound = |bucket| bound_us(bucket).map_or(f64::INFINITY, |bound| bound as f64 / 1e6);
    let buckets: Vec<(f64, u64)> =
        moved.buckets.iter().enumerate().map(|(bucket, count)| (bound(bucket), *count)).collect();
    encoder.encode_histogram::<NoLabelSet>(moved.nanos as f64 / 1e9, moved.succeeded(), &buckets, None)
}

fn begin<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    help: &str,
    kind: MetricType,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    encoder.encode_descriptor(name, help, None, kind)
}

/// A sample of a counter; whole numbers are exact below 2^53.
fn count(family: &mut MetricEncoder<'_>, labels: &[(&str, &str)], number: f64) -> fmt::Result {
    family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&number, None)
}
