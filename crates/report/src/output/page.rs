//! The page: one self-contained file, for print, phones, and light and dark mode.

use super::charts::{self, Block};
use super::cores;
use super::table::{self, Table};
use crate::chart::escape;
use crate::{Report, Section};
use std::fmt::Write as _;

const STYLE: &str = include_str!("style.css");
/// Stripe patterns that distinguish bars without colour; one for each style except the first.
const HATCHES: &str = include_str!("hatches.svg");

/// The whole page.
pub(super) fn page(report: &Report<'_>) -> String {
    let mut out = String::new();
    let title = escape(&report.plan.title);
    out.push_str("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.push_str("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.push_str(
        "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n",
    );
    add(
        &mut out,
        format_args!("<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n{HATCHES}<main>\n"),
    );
    header(&mut out, report);
    for (number, section) in report.sections.iter().enumerate() {
        write_section(&mut out, report, section, number);
    }
    footer(&mut out, report);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

fn header(out: &mut String, report: &Report<'_>) {
    add(out, format_args!("<header>\n<h1>{}</h1>\n", escape(&report.plan.title)));
    paragraph(out, "lead", &report.plan.note);
    let of =
        |name: &str| report.header.facts.iter().find(|fact| fact.name == name).map(|fact| fact.value.clone());
    let day = report.header.started.split('T').next().map(String::from);
    let kernel = of("Kernel").map(|kernel| format!("Linux {kernel}"));
    let version = of("Lunette").map(|version| format!("Lunette {version}"));
    let repetitions = Some(format!("{} repetitions", report.plan.repetitions));
    let known: Vec<String> = [day, of("CPU"), kernel, version, repetitions].into_iter().flatten().collect();
    paragraph(out, "facts", &known.join(" · "));
    if report.plan.quick {
        paragraph(out, "warning", "A quick try: runs of a fraction of a second. Not for comparison.");
    }
    let (measured, total) = report.progress;
    if measured < total {
        let text =
            format!("Incomplete: {measured} of {total} runs have a result. Failures are named at the end.");
        paragraph(out, "warning", &text);
    }
    out.push_str("<nav aria-label=\"Sections\"><ul>\n");
    for (number, section) in report.sections.iter().enumerate() {
        add(
            out,
            format_args!("<li><a href=\"#section-{number}\">{}</a></li>\n", escape(&section.matrix.title)),
        );
    }
    out.push_str("<li><a href=\"#facts\">Facts of the run</a></li>\n</ul></nav>\n");
    if let Some(overview) = table::overview(report) {
        out.push_str("<h2>Overview</h2>\n");
        let text = "Each target's figures relative to the do-nothing responder, the ceiling, in the same repetition: \
        geometric means over the rows of a section. For IOPS and MB/s, which have the same ratio, more is better, and \
        100 % is the maximum; for latency and CPU less is better, and 1.00 is the cost of the transport alone.";
        paragraph(out, "", text);
        write_table(out, &overview);
    }
    out.push_str("</header>\n");
}

fn write_section(out: &mut String, report: &Report<'_>, section: &Section<'_>, number: usize) {
    let title = escape(&section.matrix.title);
    add(out, format_args!("<section id=\"section-{number}\">\n<h2>{title}</h2>\n"));
    paragraph(out, "", &section.matrix.note);
    paragraph(out, "common", &format!("All rows: {}.", table::constants(section)));
    for block in charts::figures(report.plan, section) {
        write_block(out, &block);
    }
    out.push_str("<h3>Figures</h3>\n");
    let text = "Mean of the repetitions ± half the 95 % confidence interval; MB/s are millions of bytes; max is the \
                largest of all repetitions. Of ceiling: the ratio to the do-nothing responder's figure in the same repetition.";
    paragraph(out, "", text);
    write_table(out, &table::section(section));
    if let Some(block) = charts::latency(report.plan, section) {
        write_block(out, &block);
    }
    write_cores(out, section);
    out.push_str("</section>\n");
}

/// One table for the cores of all rows; their load over time is folded away below it.
fn write_cores(out: &mut String, section: &Section<'_>) {
    let Some(loads) = cores::loads(section) else { return };
    add(out, format_args!("<div class=\"block\">\n<h3>Load of each core</h3>\n{loads}"));
    if let Some(block) = charts::cores(section) {
        out.push_str("<details><summary>Over time</summary>\n");
        write_block(out, &block);
        out.push_str("</details>\n");
    }
    out.push_str("</div>\n");
}

fn write_block(out: &mut String, block: &Block) {
    add(out, format_args!("<div class=\"block\">\n<h3>{}</h3>\n", escape(block.title)));
    paragraph(out, "note", block.note);
    out.push_str("<ul class=\"legend\">");
    for (swatch, name) in &block.legend {
        add(out, format_args!("<li>{swatch}<span>{}</span></li>", escape(name)));
    }
    // Three in a row, unless that leaves one alone in the last.
    let class = if matches!(block.charts.len(), 1 | 2 | 4) { "charts two" } else { "charts" };
    add(out, format_args!("</ul>\n<div class=\"{class}\">\n"));
    for (heading, picture) in &block.charts {
        let caption = match heading.as_str() {
            "" => String::new(),
            heading => format!("<figcaption>{}</figcaption>", escape(heading)),
        };
        add(out, format_args!("<figure>{caption}{picture}</figure>\n"));
    }
    out.push_str("</div>\n</div>\n");
}

fn footer(out: &mut String, report: &Report<'_>) {
    out.push_str("<section id=\"facts\">\n<h2>Facts of the run</h2>\n");
    let failures = table::failures(report);
    if !failures.is_empty() {
        out.push_str("<h3>Failures</h3>\n<ul class=\"failures\">\n");
        failures.iter().for_each(|line| add(out, format_args!("<li>{}</li>\n", escape(line))));
        out.push_str("</ul>\n");
    }
    for (title, table) in [
        ("Targets", table::targets(report)),
        ("Cores and waiting", table::schedulings(report)),
        ("Machine and method", table::facts(report)),
    ] {
        add(out, format_args!("<h3>{title}</h3>\n"));
        write_table(out, &table);
    }
    commands(out, report);
    out.push_str("</section>\n");
}

/// The exact commands of the first run of every row.
fn commands(out: &mut String, report: &Report<'_>) {
    let rows = report.sections.iter().flat_map(|section| &section.rows);
    let rows: Vec<_> = rows.filter(|row| !row.commands.is_empty()).collect();
    if rows.is_empty() {
        return;
    }
    out.push_str("<h3>Commands</h3>\n");
    let text =
        "How the first run of each row was started, and how to repeat it. Ports are whichever were free.";
    paragraph(out, "", text);
    out.push_str("<details><summary>All commands</summary>\n");
    for row in rows {
        let lines: Vec<String> = row.commands.iter().map(|command| escape(command)).collect();
        let label = escape(&row.row.label());
        add(out, format_args!("<h4>{label}</h4>\n<pre>{}</pre>\n", lines.join("\n")));
    }
    out.push_str("</details>\n");
}

fn paragraph(out: &mut String, class: &str, text: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    if !text.trim().is_empty() {
        add(out, format_args!("<p{class}>{}</p>\n", escape(text.trim())));
    }
}

/// A table that scrolls when it is wider than the page.
fn write_table(out: &mut String, table: &Table) {
    out.push_str("<div class=\"scroll\" tabindex=\"0\"><table>\n<thead><tr>");
    let class = |figures: bool| if figures { " class=\"figure\"" } else { "" };
    for column in &table.columns {
        add(out, format_args!("<th scope=\"col\"{}>{}</th>", class(column.figures), escape(&column.title)));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for line in &table.lines {
        out.push_str("<tr>");
        for (place, (cell, column)) in line.iter().zip(&table.columns).enumerate() {
            let (tag, scope) = if place == 0 { ("th", " scope=\"row\"") } else { ("td", "") };
            // The interval is placed below its figure, so that a table is half as wide.
            let text = match cell.split_once(" ± ").filter(|_| column.figures) {
                Some((figure, half)) => format!("{} <small>± {}</small>", escape(figure), escape(half)),
                None => escape(cell),
            };
            add(out, format_args!("<{tag}{scope}{}>{text}</{tag}>", class(column.figures)));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn add(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = out.write_fmt(text);
}
