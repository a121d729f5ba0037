//! The `lunette` command.
#![forbid(unsafe_code)]
use engine::config::*;
fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().collect();
    let port: u16 = args[1].parse().unwrap();
    let store = match args[2].split_once(':') { Some(("file", p)) => StoreSpec::File { path: p.into(), size: Some(1 << 30) }, _ => StoreSpec::Ram { size: 1 << 30 } };
    let bs: u32 = args[3].parse().unwrap();
    let ncores: usize = args[4].parse().unwrap();
    let poll = match args.get(5).map(String::as_str) { Some("always") => Poll::Always, Some("never") => Poll::Never, _ => Poll::Adaptive };
    let lun = |n: usize| Lun { name: format!("lun{n}"), store: store.clone(), block_bytes: bs, physical_block_bytes: 4096, serial: format!("SER{n}"), product: "disk".into(), read_only: false, write_cache: true, thin: true, removable: false };
    let cores: Vec<usize> = (0..ncores).collect();
    let config = Config {
        cores: cores.clone(), poll, state_dir: None, luns: vec![lun(0)],
        targets: vec![Target { name: "iqn.2026-11.io.lunette:disk".into(), alias: None, sessions_max: 1000, portals: vec![0], luns: vec![(0, 0)], groups: vec![] }],
        portals: vec![Portal { listen: format!("127.0.0.1:{port}").parse().unwrap(), cores, group: 1 }],
        login_timeout: std::time::Duration::from_secs(15), keep_alive: std::time::Duration::from_secs(30), logins_max: 1000,
    };
    let daemon = engine::Daemon::start(config).unwrap();
    println!("{:?}", daemon.addresses());
    let mut s = String::new();
    std::io::stdin().read_line(&mut s).ok();
    if s.is_empty() { loop { std::thread::park(); } }
    daemon.stop();
}
