//! The page as a reader sees it.

use super::browser;
use super::synthetic::{Quiet, Synthetic, directory, plan};
use report::{Plan, Request, builtin, make};
use std::fs;
use std::path::{Path, PathBuf};

/// Width and height of the viewport in pixels.
const DESKTOP: (u32, u32) = (1280, 4000);
const PHONE: (u32, u32) = (390, 6000);
const SMALL_PHONE: (u32, u32) = (320, 6000);

/// A report from fake results; kept in `LUNETTE_KEEP`, if set, for inspection.
fn report(name: &str, plan: &Plan, text: &str) -> (PathBuf, tempfile::TempDir) {
    let temporary = directory();
    let directory = std::env::var_os("LUNETTE_KEEP")
        .map_or_else(|| temporary.path().to_path_buf(), |keep| Path::new(&keep).join(test_name()).join(name));
    let _ = fs::remove_dir_all(directory.join("raw"));
    let command = format!("lunette report {name} -o out");
    let request = Request { text: text.into(), directory: directory.clone(), command, ..Request::default() };
    make(plan, &request, &mut Synthetic::default(), &mut Quiet).unwrap_or_else(|errors| panic!("{errors:?}"));
    (directory, temporary)
}

/// Tests run concurrently; each keeps its own.
fn test_name() -> String {
    std::thread::current().name().unwrap_or_default().replace("::", "-")
}

fn of_builtin(name: &str) -> (PathBuf, tempfile::TempDir) {
    let text = builtin(name).unwrap().text;
    report(name, &plan(text), text)
}

/// One report for everything, since a report takes longer to make than to inspect.
#[test]
fn the_page_of_one_target_needs_nothing_else_and_its_table_is_whole() {
    let (directory, _temporary) = of_builtin("zeta");
    needs_nothing_else(&directory);
    has_its_table_whole_on_a_desktop_and_begins_with_figures_on_a_phone(&directory);
}

/// The same with another report.
#[test]
fn the_page_of_two_targets_begins_with_figures_fits_is_drawn_and_prints() {
    let (directory, _temporary) = of_builtin("stgt");
    begins_with_figures(&directory);
    fits("stgt", &directory);
    draws_charts_by_day_and_by_night(&directory);
    assert!((3..60).contains(&browser::print(&directory)));
}

fn needs_nothing_else(directory: &Path) {
    let page = fs::read_to_string(directory.join("index.html")).unwrap();
    for outside in ["http://", "https://", "<script", "<img", "@import", "src="] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert_eq!(page.matches("<link").count(), page.matches("href=\"data:,\"").count());
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
    for word in [
        "IOPS",
        "MB/s",
        "Percentile of commands",
        "Latency (µs)",
        "95 % confidence",
        "core 0",
        "Kernel",
        "tgt",
    ] {
        assert!(page.contains(word), "{word}");
    }
}

fn begins_with_figures(directory: &Path) {
    let page = fs::read_to_string(directory.join("index.html")).unwrap();
    let sections: Vec<&str> = page.split("<section id=\"section-").skip(1).collect();
    assert!(!sections.is_empty());
    for section in sections {
        let place = |what: &str| section.find(what).unwrap_or_else(|| panic!("{what}"));
        let order = [
            "<h3>Operations per second</h3>",
            "<h3>Figures</h3>",
            "<h3>Latency by percentile</h3>",
            "<h3>Load of each core</h3>",
            "<details><summary>Over time</summary>",
        ];
        assert!(order.map(place).is_sorted());
        assert_eq!(section.matches("<table class=\"cores\">").count(), 1);
        let before = &section[..place("<summary>Over time</summary>")];
        assert!(!before.contains("Time (s); load of each core"), "24 charts hide nothing");
    }
}

fn has_its_table_whole_on_a_desktop_and_begins_with_figures_on_a_phone(directory: &Path) {
    let found = browser::look(directory, &[(1400, 4000), (420, 6000)], false);
    let (desktop, phone) = (&found[0], &found[1]);
    assert_eq!(desktop.cut_tables, 0, "{desktop:?}");
    assert!(phone.first_figure_right <= 420.0, "{phone:?}");
}

fn fits(name: &str, directory: &Path) {
    let (all, day, night) = ([DESKTOP, PHONE, SMALL_PHONE], "rgb(255, 255, 255)", "rgb(20, 22, 26)");
    for (sizes, background) in [(&all[..], day), (&all[..2], night)] {
        for (found, size) in browser::look(directory, sizes, background == night).iter().zip(sizes) {
            assert!(found.scroll_width <= found.width && found.width <= size.0, "{name}: {found:?}");
            assert!(found.charts >= 4 && found.drawn == found.charts, "{name}: {found:?}");
            assert!(found.cut.is_empty(), "{name}: {found:?}");
            assert!(found.smallest_text >= 7.5, "{name}: {found:?}");
            assert_eq!(found.background, background);
        }
    }
}

/// The other reports take a minute together: `cargo xtask soak` runs them.
mod soak {
    #[test]
    fn every_other_builtin_report_fits_desktop_and_phone() {
        for name in ["zeta", "lio", "storagegear", "fastnetmon"] {
            let (directory, _temporary) = super::of_builtin(name);
            super::fits(name, &directory);
        }
    }
}

fn draws_charts_by_day_and_by_night(directory: &Path) {
    let by_day = browser::pictures(directory, &[DESKTOP, PHONE], false, "day");
    let by_night = browser::pictures(directory, &[DESKTOP], true, "night");
    let day = [[0x00, 0x72, 0xb2], [0xd5, 0x5e, 0x00], [0xff; 3]];
    let night = [[0x3b, 0x9f, 0xe0], [0xf0, 0x80, 0x3c], [0x14, 0x16, 0x1a]];
    for (pictures, colours) in [(by_day, day), (by_night, night)] {
        for picture in pictures {
            let [blue, vermilion, background] = colours.map(|colour| picture.count(colour));
            assert!(
                blue > 500 && vermilion > 500 && background > 100_000,
                "{blue}, {vermilion}, {background}"
            );
        }
    }
}

#[test]
fn odd_plans_make_sound_pages() {
    let text = "title = 'One <row> & \"no\" ceiling'\nrepetitions = 1\n[[target]]\nname = '<b>'\n[[matrix]]\ntitle = 'a & b'";
    let (directory, _temporary) = report("odd", &plan(text), text);
    let found = &browser::look(&directory, &[PHONE], false)[0];
    assert!(
        found.scroll_width <= found.width && found.charts > 0 && found.drawn == found.charts,
        "{found:?}"
    );
    let page = fs::read_to_string(directory.join("index.html")).unwrap();
    assert!(page.contains("One &lt;row&gt; &amp; &quot;no&quot; ceiling") && !page.contains("<b>"));
}
