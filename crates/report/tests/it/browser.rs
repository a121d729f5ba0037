//! A headless browser that inspects a page.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::process::Command;

/// The browser's executable; `cargo xtask test` installs it.
const PROGRAM: &str = "chromium";
/// Marks a page's own errors in the browser's log.
const CONSOLE: &str = "CONSOLE";

/// Size of the browser's window; the frames in it have their own sizes.
const WINDOW: (u32, u32) = (1200, 900);

/// What was found in a view of the page.
#[derive(Debug)]
pub struct Found {
    /// The width of the page's content.
    pub scroll_width: u32,
    /// The width available.
    pub width: u32,
    /// Charts, and those of them that have a size and content.
    pub charts: u32,
    pub drawn: u32,
    /// Chart texts that extend beyond their chart.
    pub cut: Vec<String>,
    /// Size of the smallest chart text, in pixels.
    pub smallest_text: f64,
    /// Colour of the page's background.
    pub background: String,
    /// Tables wider than their visible part.
    pub cut_tables: u32,
    /// The right edge of the first figure in each table's first line, in pixels: the maximum over all tables.
    pub first_figure_right: f64,
}

/// Runs in frames of the requested widths, side by side: a browser's window has a minimum width, a frame has
/// none.
const PROBE: &str = r#"<!doctype html><body style="margin:0;white-space:nowrap"><script>
const measured = frame => {
  const page = frame.contentDocument, root = page.documentElement;
  page.querySelectorAll("details").forEach(details => details.open = true);
  const charts = [...page.querySelectorAll("svg.chart")];
  const marks = chart => [...chart.querySelectorAll(".line,.bar,.load")].filter(mark => {
    const box = mark.getBBox(); return box.width > 0 && (box.height > 0 || mark.matches(".line"));
  });
  const cut = [];
  let smallest = 99;
  for (const chart of charts) {
    const whole = chart.getBoundingClientRect();
    for (const text of chart.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      smallest = Math.min(smallest, parseFloat(page.defaultView.getComputedStyle(text).fontSize) * whole.width / chart.viewBox.baseVal.width);
      if (box.left < whole.left - 1 || box.right > whole.right + 1 || box.top < whole.top - 1 || box.bottom > whole.bottom + 1)
        cut.push(text.textContent);
    }
  }
  return {
    scrollWidth: root.scrollWidth, width: root.clientWidth, charts: charts.length,
    drawn: charts.filter(chart => chart.getBoundingClientRect().width > 100 && marks(chart).length).length,
    cutTables: [...page.querySelectorAll(".scroll")].filter(box => box.scrollWidth > box.clientWidth + 1).length,
    firstFigureRight: Math.max(0, ...[...page.querySelectorAll("section:not(#facts) tbody")]
      .map(body => body.querySelector("td.figure, .cores td")).filter(cell => cell).map(cell => cell.getBoundingClientRect().right)),
    cut, smallest, background: page.defaultView.getComputedStyle(page.body).backgroundColor,
  };
};
const views = VIEWS, found = [];
let missing = views.length;
views.forEach(([width, height], place) => {
  const frame = document.createElement("iframe");
  frame.style = "border:0";
  frame.width = width; frame.height = height; frame.src = "index.html";
  frame.onload = () => {
    found[place] = measured(frame);
    missing -= 1;
    if (missing === 0) document.body.dataset.found = JSON.stringify(found);
  };
  document.body.append(frame);
});
</script>"#;

/// Inspects `index.html` in this directory, at each of these sizes.
pub fn look(directory: &Path, sizes: &[(u32, u32)], dark: bool) -> Vec<Found> {
    let views: Vec<[u32; 2]> = sizes.iter().map(|&(width, height)| [width, height]).collect();
    fs::write(directory.join("probe.html"), PROBE.replace("VIEWS", &format!("{views:?}"))).unwrap();
    let mut browser = browser(directory, WINDOW, dark);
    let (text, log) = run(browser.arg("--dump-dom").arg(address(directory, "probe.html")));
    let found = text.split_once("data-found=\"").and_then(|(_, rest)| rest.split_once('"'));
    let (found, _) = found.unwrap_or_else(|| panic!("the page did not load:\n{text}\n{log}"));
    let found: Vec<serde_json::Value> =
        serde_json::from_str(&found.replace("&quot;", "\"").replace("&amp;", "&")).unwrap();
    assert_eq!(found.len(), sizes.len());
    found.iter().map(Found::read).collect()
}

impl Found {
    fn read(found: &serde_json::Value) -> Found {
        let number = |name: &str| found[name].as_f64().unwrap_or_else(|| panic!("{name}: {found}"));
        Found {
            scroll_width: number("scrollWidth") as u32,
            width: number("width") as u32,
            charts: number("charts") as u32,
            drawn: number("drawn") as u32,
            cut: found["cut"].as_array().into_iter().flatten().map(ToString::to_string).collect(),
            smallest_text: number("smallest"),
            cut_tables: number("cutTables") as u32,
            first_figure_right: number("firstFigureRight"),
            background: found["background"].as_str().unwrap_or_default().into(),
        }
    }
}

/// A screenshot of the top of the page.
pub struct Picture {
    /// Pixels of three bytes.
    pub pixels: Vec<[u8; 3]>,
}

impl Picture {
    /// Number of pixels of approximately this colour.
    pub fn count(&self, colour: [u8; 3]) -> usize {
        let near = |pixel: &&[u8; 3]| pixel.iter().zip(colour).all(|(a, b)| a.abs_diff(b) <= 6);
        self.pixels.iter().filter(near).count()
    }
}

/// Takes screenshots of the page at these sizes, in a single file of this name.
pub fn pictures(directory: &Path, sizes: &[(u32, u32)], dark: bool, name: &str) -> Vec<Picture> {
    let frame = |(width, height): &(u32, u32)| {
        format!(
            "<iframe src=\"index.html\" width={width} height={height} style=\"border:0;float:left\"></iframe>"
        )
    };
    let frames: String = sizes.iter().map(frame).collect();
    fs::write(directory.join("frame.html"), format!("<!doctype html><body style=\"margin:0\">{frames}"))
        .unwrap();
    let window =
        (sizes.iter().map(|size| size.0).sum(), sizes.iter().map(|size| size.1).max().unwrap_or_default());
    let path = directory.join(format!("{name}.png"));
    let mut browser = browser(directory, window, dark);
    let target = format!("--screenshot={}", path.display());
    run(browser.arg(target).arg(address(directory, "frame.html")));
    let file = BufReader::new(File::open(&path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    assert_eq!((info.width, info.height), window);
    let (step, mut left) = (info.color_type.samples(), 0);
    let part = |&(width, height): &(u32, u32)| {
        let columns = left..left + width as usize;
        left = columns.end;
        let lines = bytes.chunks_exact(info.line_size).take(height as usize);
        let line = |line: &[u8]| -> Vec<[u8; 3]> {
            line[columns.start * step..columns.end * step]
                .chunks_exact(step)
                .map(|p| [p[0], p[1], p[2]])
                .collect()
        };
        Picture { pixels: lines.flat_map(line).collect() }
    };
    sizes.iter().map(part).collect()
}

/// Prints the page to a PDF file and returns its number of pages.
pub fn print(directory: &Path) -> usize {
    let path = directory.join("report.pdf");
    let mut browser = browser(directory, WINDOW, false);
    let target = format!("--print-to-pdf={}", path.display());
    run(browser.arg(target).arg("--no-pdf-header-footer").arg(address(directory, "index.html")));
    let bytes = fs::read(&path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    text.matches("/Type /Page\n").count() + text.matches("/Type /Page ").count()
}

fn address(directory: &Path, name: &str) -> String {
    format!("file://{}", directory.join(name).display())
}

fn browser(directory: &Path, window: (u32, u32), dark: bool) -> Command {
    let mut command = Command::new(PROGRAM);
    let (width, height) = window;
    command
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"])
        .args(["--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update"])
        .args(["--allow-file-access-from-files", "--enable-logging=stderr", "--virtual-time-budget=10000"])
        .arg(format!("--user-data-dir={}", directory.join("profile").display()))
        .arg(format!("--window-size={width},{height}"))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
    command
}

/// Runs the browser; a page that logs an error to its console is a fault.
fn run(command: &mut Command) -> (String, String) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{PROGRAM} cannot run ({error}): install the Debian package chromium, as cargo xtask test does as root")
    });
    let (text, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}:\n{log}");
    assert!(!log.contains(CONSOLE), "the page complains:\n{log}");
    (text.into_owned(), log.into_owned())
}
