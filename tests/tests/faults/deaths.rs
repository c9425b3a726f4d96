//! Kills `configure` at its system calls.

use super::*;

/// Counts of the kills' results.
#[derive(Debug, Default)]
struct Deaths {
    deaths: usize,
    /// Nothing had changed yet.
    untouched: usize,
    missed: usize,
    /// Files that a success does not leave.
    left: BTreeSet<String>,
    wrong: Vec<String>,
}

pub(crate) fn killed(name: &str, cgroup: fn() -> DeviceCgroup) {
    let (done, report) = reference(cgroup);
    let twice = second_time(cgroup);
    let scratch = Scratch::new().unwrap();
    // One that takes long enough to be found if it survives.
    let slow = failing_ldconfig(&scratch, &["-DBUSY=8".to_owned()]);
    let real = host_ldconfig();
    let mut cases = Vec::new();
    let wanted = match only() {
        Some(place) => BTreeSet::from([place]),
        None => spread(&report, harness::cases(60, usize::MAX)),
    };
    let wanted = mixed(wanted);
    for (task, call) in wanted {
        if task != "main" && phase(&report, &task, call) != Phase::Foreign {
            cases.push((task.clone(), call, &slow));
        }
        cases.push((task, call, &real));
    }
    let mut deaths = Deaths::default();
    for (task, call, ldconfig) in cases {
        let fault = Fault {
            task,
            of: None,
            call,
            effect: Effect::Killed,
        };
        one_death(
            &fault,
            &Subject::new(cgroup),
            ldconfig,
            [&done, &twice],
            &mut deaths,
        );
        if deaths.deaths % 500 == 499 {
            let wrong = deaths.wrong.len();
            println!("{name} so far: killed at {}, {wrong} wrong", deaths.deaths);
        }
    }
    println!(
        "cgroup {name}, {} calls: killed at {}, {} of them before anything was changed, {} wrong; {} not met; left over: {:?}",
        report.len(),
        deaths.deaths,
        deaths.untouched,
        deaths.wrong.len(),
        deaths.missed,
        deaths.left
    );
    let shown: Vec<_> = deaths.wrong.iter().take(30).collect();
    assert!(shown.is_empty(), "{} wrong: {shown:#?}", deaths.wrong.len());
}

fn one_death(
    fault: &Fault,
    subject: &Subject,
    ldconfig: &str,
    results: [&Done; 2],
    deaths: &mut Deaths,
) {
    let [done, twice] = results;
    let (outcome, report) = subject.configure_with(ldconfig, Some(fault));
    let Some(call) = report.hit else {
        deaths.missed += 1;
        return;
    };
    deaths.deaths += 1;
    let mut wrong = Vec::new();
    if (outcome.status, outcome.orphans.len()) != (Some(128 + 9), 0) {
        wrong.push(format!("{outcome:?}"));
    }
    // Neither more nor fewer devices than chosen: the cgroup always has its filter.
    let (before, now) = (&subject.rules.allowed, Rules::of(&subject.container));
    let lost = before.iter().any(|device| !now.allowed.contains(device));
    let gained = (now.allowed.iter()).any(|device| !done.rules.allowed.contains(device));
    if lost || gained || now.text.is_empty() || now.text == ["0"] {
        wrong.push(format!("rules {now:?}"));
    }
    let changes = subject.changes();
    deaths.untouched += usize::from(changes.is_empty());
    let on_host = changes
        .iter()
        .filter(|line| line.starts_with("on the host"));
    wrong.extend(on_host.cloned());

    let again = Run::cli(subject.words(&host_ldconfig())).outcome().unwrap();
    if (again.status, again.stderr.as_str(), again.orphans.len()) != (Some(0), "", 0) {
        wrong.push(format!("again: {again:?}"));
    }
    let mut result = Done::of(subject);
    if done
        .differences(&result)
        .iter()
        .all(|line| line.contains(" etc/ld.so.cache "))
    {
        // It lists the links that existed before: those of the first run, of the second, or some.
        Run::cli(subject.words(&host_ldconfig())).succeeds();
        result = Done::of(subject);
    }
    let (once, twice) = (done.differences(&result), twice.differences(&result));
    let nearer = std::cmp::min_by_key(once, twice, Vec::len);
    let (left, differences): (Vec<_>, Vec<_>) =
        nearer.into_iter().partition(|line| is_temporary(line));
    let name = |line: &String| line.split(' ').nth(1).unwrap_or_default().to_owned();
    deaths.left.extend(left.iter().map(name));
    wrong.extend(differences);
    if !wrong.is_empty() {
        let what = format!("{fault}, {}: {wrong:#?}", syscalls::name(call));
        println!("wrong: {what}");
        deaths.wrong.push(what);
    }
}

/// Returns true if a difference is an unfinished file of ldconfig.
fn is_temporary(line: &str) -> bool {
    let line = line.trim_start_matches("seen inside ");
    let name = line
        .strip_prefix("+ ")
        .and_then(|line| line.split(' ').next());
    name.is_some_and(|name| name.ends_with('~'))
}
