//! The daemon's web page, in a real browser.

use crate::support::browser::Browser;
use crate::support::daemon::Daemon;
use crate::support::initiator::{Initiator, Login, reserve_out};
use crate::support::load::Load;
use crate::support::tools::{must, tool};
use crate::support::wait_until;
use serde_json::{Value, json};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use wire::scsi::status::GOOD;

/// A name that would be a script if it were interpreted as HTML.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

fn place(daemon: &Daemon) -> String {
    let line = daemon.banner().lines().find_map(|line| line.strip_prefix("Admin "));
    line.expect("the banner has it").to_owned()
}

/// The page's connection status.
const LIVE: &str = "document.getElementById('live')?.textContent";

/// The page, once it shows what it has read.
fn opened(place: &str) -> Browser {
    let mut browser = Browser::open(&format!("{place}/"));
    wait_until("it is live", || browser.value(LIVE) == "live");
    browser
}

/// Reads per second in the first row of a table.
fn reads(browser: &mut Browser, table: &str) -> f64 {
    let cell = format!(
        "[...document.querySelectorAll('#{table} th')].findIndex(title => title.textContent === 'R/s')"
    );
    let text =
        browser.value(&format!("document.querySelector('#{table} tbody tr')?.cells[{cell}]?.textContent"));
    let text = text.as_str().unwrap_or("-").to_owned();
    match text.strip_suffix(['k', 'M']) {
        Some(_) => 10_000.0,
        None => text.parse().unwrap_or(0.0),
    }
}

fn sessions(browser: &mut Browser) -> f64 {
    let count = "document.querySelectorAll('#sessions tbody tr:not(.noted)').length";
    browser.value(count).as_f64().expect("a number")
}

#[test]
fn the_page_changes_when_load_begins_and_ends_and_a_session_goes() {
    let daemon = Daemon::serve(["--lun", "ram:16M", "--admin", "127.0.0.1:0"]);
    let mut browser = opened(&place(&daemon));
    wait_until("charts are drawn", || {
        browser.value("document.querySelectorAll('#charts polyline').length").as_u64() > Some(0)
    });
    assert_eq!(sessions(&mut browser), 0.0);

    let mut load = Load::on(&daemon.lun(0).to_string(), &["--iodepth", "2"]);
    wait_until("load begins", || reads(&mut browser, "luns") > 0.0 && reads(&mut browser, "sessions") > 0.0);
    wait_until("it is an event", || {
        let events = browser.value("document.getElementById('events').textContent");
        events.as_str().is_some_and(|text| text.contains("session begun"))
    });
    // What it reads first it has not written.
    load.wait_for_progress();
    load.stop();
    wait_until("load ends", || reads(&mut browser, "luns") == 0.0 && sessions(&mut browser) == 0.0);

    // A name of 223 bytes, as long as they may be (RFC 7143 section 4.2.7.1).
    let one = Initiator::login(&daemon.lun(0), &Login::named(&"x".repeat(195))).expect("login");
    wait_until("a session comes", || sessions(&mut browser) == 1.0);
    browser.value("document.querySelectorAll('summary').forEach(summary => summary.click())");
    wait_until("it is open", || browser.value("document.querySelectorAll('#sessions dl').length") == 1);
    let mut backgrounds = Vec::new();
    for (width, scheme) in [(420, "light"), (1400, "dark")] {
        browser.resize(width, scheme);
        wait_until("it is as wide", || browser.value("innerWidth") == width);
        let wanted = browser.value("document.documentElement.scrollWidth");
        assert!(wanted.as_u64() <= Some(width.into()), "{wanted} of {width}");
        let cut = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length";
        assert_eq!(browser.value(cut), 0, "tables that are cut at {width}");
        backgrounds.push(browser.value("getComputedStyle(document.body).backgroundColor"));
    }
    assert_ne!(backgrounds[0], backgrounds[1]);
    drop(one);
    wait_until("a session goes", || sessions(&mut browser) == 0.0);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    daemon.stop();
}

#[test]
fn names_of_initiators_are_shown_as_text() {
    let daemon = Daemon::serve(["--lun", "ram:16M", "--admin", "127.0.0.1:0"]);
    let mut browser = opened(&place(&daemon));
    let places = [
        format!(
            "(happened({{ type: 'x', data: JSON.stringify({{ initiator: '{HOSTILE}' }}) }}), at('events'))"
        ),
        format!("table(SESSIONS, [{{ initiator: '{HOSTILE}', target: '{HOSTILE}' }}], moreOfSession, '')"),
        format!("table(LUNS, [{{ name: '{HOSTILE}', trouble: '{HOSTILE}' }}], moreOfLun, '')"),
    ];
    for place in places {
        let shown = browser.value(&format!(
            "(place => [place.textContent.includes('{HOSTILE}'), place.querySelectorAll('img').length])({place})"
        ));
        assert_eq!(shown, json!([true, 0]), "{place}");
    }
    daemon.stop();
}

#[test]
fn what_is_opened_on_the_page_shows_all_there_is_to_say_and_stays_open() {
    let lun = "ram:16M,iops_max=900000";
    let daemon = Daemon::serve(["--lun", lun, "--admin", "127.0.0.1:0"]);
    let mut holder = Initiator::login(&daemon.lun(0), &Login::named("holder")).expect("login");
    holder.ready(0).expect("TEST UNIT READY");
    assert_eq!(reserve_out(&mut holder, 0, 0, 0, 0, 0xaa), GOOD, "REGISTER");
    assert_eq!(reserve_out(&mut holder, 0, 1, 1, 0xaa, 0), GOOD, "RESERVE, write exclusive");
    let mut browser = Browser::open(&format!("{}/", place(&daemon)));
    wait_until("both are listed", || browser.value("document.querySelectorAll('summary').length") == 2);
    assert_eq!(browser.value("document.querySelectorAll('dl').length"), 0);
    browser.value("document.querySelectorAll('summary').forEach(summary => summary.click())");
    browser.value("document.querySelector('#luns summary').focus()");
    let shown = "[...document.querySelectorAll('#TABLE dt')].map(dt => `${dt.textContent}: ${dt.nextSibling.textContent}`)";
    let facts = |browser: &mut Browser, table: &str| -> String {
        let list = browser.value(&shown.replace("TABLE", table));
        list.as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
    };
    wait_until("they are open, and read once more", || facts(&mut browser, "luns").contains("reads: 0/s"));
    let luns = facts(&mut browser, "luns");
    let of_lun = [
        "store: ram:16777216",
        "state: open",
        "size: 16.0 MiB",
        "used: ",
        "write cache: on",
        "limits: at most 900000 commands/s",
        "reserved: write exclusive reservation of iqn.",
        "registered: iqn.",
        "holder,i,0x",
        ", key 0x00000000000000aa",
        "writes: 0/s, 0 MB/s, p50 -, p99 -",
    ];
    for part in of_lun {
        assert!(luns.contains(part), "{part}: {luns}");
    }
    let sessions = facts(&mut browser, "sessions");
    let address = format!("address: {}", holder.stream().local_addr().expect("an address"));
    let portal = format!("portal: {}", daemon.lun(0).portal);
    let keys = ["address", "target", "transport: iSCSI", "state: serving", "core: ", "age: ", "in flight: 0"];
    for part in keys.into_iter().chain([&*address, &portal, "DataDigest: None", "MaxBurstLength: "]) {
        assert!(sessions.contains(part), "{part}: {sessions}");
    }

    let readings = browser.value("samples.length").as_u64();
    wait_until("it is read again", || browser.value("samples.length").as_u64() > readings);
    let focus = "document.activeElement === document.querySelector('#luns summary') && document.activeElement.isConnected";
    assert_eq!(browser.value(focus), true);
    browser.value("document.activeElement.click()");
    wait_until("it is closed", || browser.value("document.querySelectorAll('dl').length") == 1);
    assert_eq!(facts(&mut browser, "luns"), "");
    assert_eq!(browser.value(focus), true);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    daemon.stop();
}

#[test]
fn the_page_measures_what_was_done_by_the_time_it_took() {
    let daemon = Daemon::serve(["--lun", "ram:16M", "--admin", "127.0.0.1:0"]);
    let mut browser = opened(&place(&daemon));
    let counts =
        |commands: u64| json!({ "commands": commands, "bytes": 0, "latency": { "le_us": [], "counts": [] } });
    let list = |time: u64, commands: u64| {
        let stats = json!({ "read": counts(commands), "write": counts(0) });
        json!({ "time": time, "items": [{ "name": "a", "stats": stats }] })
    };
    let iops = format!(
        "(now => (withLoad(now, {}, 'name'), now.items[0].load.read.iops))({})",
        list(1000, 10),
        list(3000, 30)
    );
    assert_eq!(browser.value(&iops), 10);

    // Restarted, and busier than before already.
    let core =
        |busy: u64, asleep: u64| json!({ "core": 0, "busy_s": busy, "polling_s": 0, "asleep_s": asleep });
    let busy = format!(
        "(cores => (withParts(cores, byKey([{}], 'core')), cores[0].busy))([{}])",
        core(10, 90),
        core(15, 15)
    );
    assert_eq!(browser.value(&busy), 0.5);

    let samples = "[0, 1, 3, 60, 61].map(time => ({ time: time * 1e3 }))";
    let points = format!("line('', {samples}, 61, 1, () => 1).map(made => made.getAttribute('points'))");
    let expected = json!(["0.0,15.0 1.0,15.0 3.0,15.0", "60.0,15.0 61.0,15.0"]);
    assert_eq!(browser.value(&points), expected, "a gap breaks the line");
    daemon.stop();
}

#[test]
fn the_page_shows_since_when_there_is_no_answer() {
    let daemon = Daemon::serve(["--lun", "ram:16M", "--admin", "127.0.0.1:0"]);
    let mut browser = opened(&place(&daemon));
    let is_lost =
        |browser: &mut Browser| browser.value(&format!("{LIVE}.startsWith('no answer since ')")) == true;
    let signal = |name: &str| must(tool("kill").arg(name).arg(daemon.pid().to_string()));

    signal("-STOP");
    wait_until("a daemon that hangs is noticed", || is_lost(&mut browser));
    assert_eq!(browser.value("document.querySelectorAll('main.stale').length"), 1);
    signal("-CONT");
    wait_until("it is live again", || browser.value(LIVE) == "live");
    assert_eq!(browser.value("document.querySelectorAll('main.stale').length"), 0);

    daemon.stop();
    wait_until("its end is noticed", || is_lost(&mut browser));
    let since = browser.value("lostSince.getTime()");
    browser.value("document.getElementById('live').textContent = ''");
    wait_until("it is asked once more", || is_lost(&mut browser));
    assert_eq!(browser.value("lostSince.getTime()"), since, "the first failure is what counts");
}

#[test]
fn the_page_may_run_only_its_own_script_and_connect_only_to_its_daemon() {
    let daemon = Daemon::serve(["--lun", "ram:16M", "--admin", "127.0.0.1:0"]);
    let place = place(&daemon);
    let get = || {
        let mut stream = TcpStream::connect(place.trim_start_matches("http://")).expect("it listens");
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").expect("a request is taken");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("an answer");
        text
    };
    let (first, second) = (get(), get());
    let policy = |text: &str| {
        let policy = text.lines().find_map(|line| line.strip_prefix("content-security-policy: "));
        policy.expect("a policy").to_owned()
    };
    let parts = ["default-src 'none'; script-src 'nonce-", "connect-src 'self'", "frame-ancestors 'none'"];
    assert!(parts.iter().all(|part| policy(&first).contains(part)), "{}", policy(&first));
    assert!(!policy(&first).contains("unsafe"), "{}", policy(&first));
    assert_ne!(policy(&first), policy(&second), "a nonce is used once");
    let body = first.split_once("\r\n\r\n").expect("a body").1;
    // A namespace is only a name: nothing is loaded from there.
    let rest = body.replace("http://www.w3.org/2000/svg", "");
    assert!(!rest.contains("http") && !rest.contains("NONCE"), "nothing comes from elsewhere");

    let mut browser = opened(&place);
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    let script = "const script = document.createElement('script'); script.textContent = 'window.ran = 1';";
    let throw = "setTimeout(() => { throw Error('thrown') })";
    browser.value(&format!("{script} document.body.append(script); {throw}"));
    wait_until("both are complaints", || {
        assert_eq!(browser.value("window.ran"), Value::Null);
        let complaints = format!("{:?}", browser.complaints);
        complaints.contains("Content Security Policy") && complaints.contains("thrown")
    });
    daemon.stop();
}
