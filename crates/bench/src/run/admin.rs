//! Asks a Lunette target for its CPU time: one HTTP request over a connection of its own, answered within bounded
//! time and size, so that a target that hangs holds up nothing.

use super::RunError;
use reactor::cpu::{self, Snapshot};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the target may take for all of an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an answer: thousands of threads and cores.
const ANSWER_MAX: usize = 4 << 20;
/// Bytes that are read at once.
const PIECE: usize = 16 << 10;

/// The admin interface of a running target.
#[derive(Clone, Debug)]
pub struct AdminClient {
    /// As it was given.
    name: String,
    place: Place,
    /// The machine that the target runs on.
    machine: String,
}

#[derive(Clone, Debug)]
enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl AdminClient {
    /// The interface at a path or at HOST:PORT, or the URL that the banner shows; it must answer.
    ///
    /// # Errors
    /// When the name is not one of these, or nothing there reports CPU time.
    pub fn open(name: &str) -> Result<AdminClient, RunError> {
        let wrong = |problem: String, remedy: &str| RunError::new(format!("{name}: {problem}"), remedy);
        if name.starts_with("https://") {
            let remedy = "name the target's socket, also through ssh -L, or an address without a certificate";
            return Err(wrong("CPU times cannot be read over TLS".into(), remedy));
        }
        let place = name.strip_prefix("http://").unwrap_or(name);
        let places = if place.contains('/') {
            vec![Place::Unix(place.into())]
        } else {
            let remedy =
                "write a path with a slash, as ./lunette.sock, or a host and a port, as localhost:9260";
            let addresses = place.to_socket_addrs().map_err(|error| wrong(error.to_string(), remedy))?;
            addresses.map(Place::Tcp).collect()
        };
        let mut problem = format!("{name}: that host has no address");
        for place in places {
            let client = AdminClient { name: name.into(), place, machine: String::new() };
            match client.snapshot() {
                Ok(Snapshot { machine, .. }) => return Ok(AdminClient { machine, ..client }),
                Err(why) => problem = why,
            }
        }
        let remedy = "start the target as lunette serve --admin, and name here what its banner prints";
        Err(RunError::new(problem, remedy))
    }

    /// Whether the target runs on another machine than this.
    pub fn is_elsewhere(&self) -> bool {
        self.machine != cpu::machine()
    }

    /// What the target has used until now, or why that is not known.
    pub(super) fn snapshot(&self) -> Result<Snapshot, String> {
        let until = Instant::now() + PATIENCE;
        let answer = match &self.place {
            Place::Unix(path) => connect_unix(path).and_then(|stream| ask(stream, until)),
            Place::Tcp(address) => {
                TcpStream::connect_timeout(address, PATIENCE).and_then(|stream| ask(stream, until))
            }
        };
        let answer = answer.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("{}: no answer within {} s", self.name, PATIENCE.as_secs())
            }
            _ => format!("{}: {error}", self.name),
        })?;
        read_answer(&answer).map_err(|problem| format!("{}: {problem}", self.name))
    }
}

/// A stream with configurable timeouts.
trait Patient: Read + Write {
    fn wait_at_most(&self, time: Duration) -> io::Result<()>;
}

impl Patient for UnixStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

impl Patient for TcpStream {
    fn wait_at_most(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// Connects without waiting for room in the queue of a target that does not accept.
fn connect_unix(path: &PathBuf) -> io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// All that comes back until the target closes the connection.
fn ask(mut stream: impl Patient, until: Instant) -> io::Result<Vec<u8>> {
    stream.wait_at_most(PATIENCE)?;
    stream.write_all(b"GET /v1/cpu HTTP/1.1\r\nHost: lunette\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.wait_at_most(left)?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(answer),
            Ok(count) if answer.len() + count > ANSWER_MAX => {
                return Err(io::Error::other(format!("the answer is longer than {ANSWER_MAX} bytes")));
            }
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Takes apart a whole answer, whose body reaches to its end (RFC 9112 section 6.3).
fn read_answer(answer: &[u8]) -> Result<Snapshot, String> {
    let not_ours = || "this is not an admin interface of Lunette".to_string();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").ok_or_else(not_ours)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| not_ours())?;
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    match (words.next(), words.next()) {
        (Some("HTTP/1.1"), Some("200")) => {}
        (Some("HTTP/1.1"), Some(status)) => return Err(format!("it answers with status {status}")),
        _ => return Err(not_ours()),
    }
    serde_json::from_slice(&answer[end + 4..])
        .map_err(|error| format!("its answer is not understood: {error}"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use tempfile::TempDir;

    /// A target that gives these answers, one to each connection, and then holds connections without a word.
    pub(in crate::run) fn answering(answers: Vec<Vec<u8>>) -> (TempDir, AdminClient) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("admin.sock");
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            let mut answers = answers.into_iter();
            while let Ok((mut stream, _)) = listener.accept() {
                match answers.next() {
                    Some(answer) => {
                        let _ = stream.read(&mut [0; 1024]);
                        let _ = stream.write_all(&answer);
                    }
                    None => silent.push(stream),
                }
            }
        });
        let client =
            AdminClient { name: "./admin.sock".into(), place: Place::Unix(path), machine: String::new() };
        (folder, client)
    }

    pub(in crate::run) fn answer(snapshot: &Snapshot) -> Vec<u8> {
        format!("HTTP/1.1 200 OK\r\n\r\n{}", serde_json::to_string(snapshot).unwrap()).into()
    }

    #[test]
    fn a_cut_or_foreign_answer_is_refused() {
        let now = reactor::cpu::snapshot(Duration::from_secs(1));
        let whole = answer(&now);
        assert_eq!(read_answer(&whole).unwrap(), now);
        (0..whole.len()).for_each(|end| assert!(read_answer(&whole[..end]).is_err(), "{end} bytes"));
        for (answer, problem) in [
            (&b"HTTP/1.1 404 Not Found\r\n\r\n{}"[..], "status 404"),
            (b"HTTP/1.1 200 OK\r\n\r\n{\"pid\":1}", "not understood"),
            (b"SSH-2.0-OpenSSH_9.2\r\n", "not an admin interface"),
            (b"\xff\xff\r\n\r\n", "not an admin interface"),
        ] {
            assert!(read_answer(answer).unwrap_err().contains(problem), "{problem}");
        }
    }

    #[test]
    fn a_target_that_is_silent_or_does_not_stop_is_given_up() {
        let (_folder, client) = answering(vec![vec![b'x'; ANSWER_MAX + PIECE]]);
        assert!(client.snapshot().unwrap_err().contains("longer than"));
        assert!(client.snapshot().unwrap_err().contains("no answer within 2 s"));
    }

    #[test]
    fn a_name_is_a_path_or_a_host_with_a_port() {
        let problem = |name: &str| AdminClient::open(name).unwrap_err().to_string();
        assert!(problem("admin.sock").contains("write a path with a slash"));
        assert!(problem("https://localhost:1").contains("cannot be read over TLS"));
        assert!(problem("/nonexistent/a.sock").contains("start the target as lunette serve --admin"));
    }
}
