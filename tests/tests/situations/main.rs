//! Checks what a container gets, in one table: the rows are situations of a host, an image or a container, the columns
//! are the ways to give it GPUs. Each cell runs a container by runc on a machine of its own.
//!
//! All cells of a row have the row's expectation. One that differs needs a reason, which the table contains.
#![allow(clippy::unwrap_used)]

mod asked;
mod containers;
mod exchanged;
mod expectation;
mod hosts;
mod images;
mod machine;
mod modes;
mod real;
mod row;

use std::process::ExitCode;

use nvc_testkit::harness::Need::{Command, Root};
use nvc_testkit::harness::{self, Test, test};

use modes::MODES;
use row::Row;

/// Cells that are not right yet: they are run and reported, and do not fail. The list must become empty.
const WAITING: &[(&str, &str)] = &[];

fn main() -> ExitCode {
    // A row names its machine. Only images with a package's mount points take its names from the loaded driver.
    harness::on_debian();
    // Where they say nothing about directories, on the layout of a real machine.
    let real = [images::rows(), containers::rows()].into_iter().flatten();
    let real = real.map(Row::on_a_real_layout);
    let others = [
        asked::rows(),
        hosts::rows(),
        exchanged::rows(),
        real::rows(),
    ];
    let rows: Vec<Row> = others.into_iter().flatten().chain(real).collect();
    let tests = rows.into_iter().map(|row| {
        let needs = [Root, Command("runc"), Command("cc")];
        test(row.name, &needs, move || check(&row))
    });
    harness::main(tests.collect::<Vec<Test>>())
}

/// Checks the cells of a row.
fn check(row: &Row) {
    let prepared = machine::Machine::new(row);
    let only = std::env::var("ONLY").ok();
    let mut wrong = Vec::new();
    for mode in MODES {
        if only.as_deref().is_some_and(|only| only != mode.name()) {
            continue;
        }
        let faults = modes::run(&prepared, row, mode).faults(&prepared, &row.expected(mode));
        let waits = WAITING.contains(&(row.name, mode.name()));
        if faults.is_empty() {
            if waits {
                println!("right now: {} by {}", row.name, mode.name());
            }
            continue;
        }
        let text = format!(
            "{} by {}:\n  {}",
            row.name,
            mode.name(),
            faults.join("\n  ")
        );
        if waits {
            println!("not right yet: {text}");
        } else {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
