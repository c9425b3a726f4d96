use libnvc::host::monitor::{MigAttributes, MigPlacement};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const QUIET: u64 = 300;

fn state() -> State {
    restarted(&Kept::default())
}

/// Returns what a new process knows, by way of the file.
fn restarted(kept: &Kept) -> State {
    let rules = Rules {
        ignored: vec![500],
        quiet: QUIET,
    };
    let text = serde_json::to_string(kept).unwrap();
    State::new(rules, serde_json::from_str(&text).unwrap())
}

fn mig(gpu: u32, instance: u32) -> Mig {
    Mig {
        uuid: format!("MIG-{gpu}-{instance}"),
        profile: "1g.10gb".into(),
        instances: (instance, 0),
        placement: MigPlacement {
            profile: 19,
            start: instance,
            size: 1,
        },
        attributes: MigAttributes {
            multiprocessors: 16,
            copy_engines: 1,
            decoders: 1,
            jpeg_engines: 0,
            memory: 1 << 10,
            ..MigAttributes::default()
        },
        health: Health::Well,
    }
}

/// GPU 2 has two MIG devices.
fn gpu(number: u32) -> Gpu {
    Gpu {
        minor: number,
        uuid: format!("GPU-{number}"),
        busid: format!("0000:0{number}:00.0"),
        model: "NVIDIA H100".into(),
        brand: "Nvidia".into(),
        compute: (9, 0),
        memory: Some(80 << 30),
        addressing: None,
        is_divided: number == 2,
        migs: if number == 2 {
            vec![mig(2, 1), mig(2, 2)]
        } else {
            Vec::new()
        },
        health: Health::Well,
    }
}

fn well(number: u32) -> Result<Found, String> {
    let gpu = gpu(number);
    Ok(Found { gpu, needs: None })
}

fn needing(number: u32, needs: u32) -> Result<Found, String> {
    let gpu = gpu(number);
    let needs = Some(needs);
    Ok(Found { gpu, needs })
}

fn lost() -> Result<Found, String> {
    Err("nvml: GPU is lost".into())
}

fn look(gpus: Vec<Result<Found, String>>) -> News {
    News::Look(Look::Driver {
        version: "580.159.04".into(),
        cuda: "13.0".into(),
        gpus,
    })
}

fn all_well() -> News {
    look((0..3).map(well).collect())
}

fn xid(number: u32, code: u64) -> News {
    xid_of(number, code, None)
}

fn xid_of(number: u32, code: u64, instance: Option<(u32, Option<u32>)>) -> News {
    News::Event(GpuEvent::Xid {
        gpu: format!("GPU-{number}"),
        instance,
        code,
    })
}

/// Returns the UUIDs of what is sick.
fn sick(state: &State, now: u64) -> Vec<String> {
    let machine = state.world(now).unwrap();
    let all = machine.gpus.iter().flat_map(|gpu| {
        let migs = gpu.migs.iter().map(|mig| (&mig.uuid, &mig.health));
        [(&gpu.uuid, &gpu.health)].into_iter().chain(migs)
    });
    let sick = all.filter(|(_, health)| !health.is_well());
    sick.map(|(uuid, _)| uuid.clone()).collect()
}

fn after(news: impl IntoIterator<Item = (u64, News)>) -> State {
    let mut state = state();
    for (now, news) in news {
        state.fold(news, now);
    }
    state
}

#[test]
fn a_lost_gpu_is_sick_alone_until_it_was_reset() {
    let mut state = after([(100, all_well()), (101, xid(1, 79))]);
    assert_eq!(sick(&state, 101), ["GPU-1"]);
    let machine = state.world(101).unwrap();
    let Health::Sick { reason, xid } = &machine.gpus[1].health else {
        panic!("well");
    };
    assert_eq!(*xid, Some(79));
    assert_eq!(reason, "XID 79: it is unusable until it is reset");
    // Nobody waits for its events, which would keep it from being reset.
    let watched: Vec<u32> = state.watchable().iter().map(|(index, _)| *index).collect();
    assert_eq!(watched, [0, 2]);
    // It answers, but nothing says that it was reset.
    state.fold(all_well(), 9_000);
    assert_eq!(sick(&state, 9_000), ["GPU-1"]);
    state.fold(look(vec![well(0), lost(), well(2)]), 9_005);
    assert_eq!(sick(&state, 9_005), ["GPU-1"]);
    state.fold(all_well(), 9_010);
    assert_eq!(sick(&state, 9_010), ["GPU-1"]);
    state.fold(all_well(), 9_015);
    assert_eq!(sick(&state, 9_015), [""; 0]);
    assert_eq!(state.kept(), Kept::default());
    assert_eq!(state.watchable().len(), 3);
}

#[test]
fn a_restart_changes_no_verdict() {
    let before = after([(100, all_well()), (101, xid(1, 79))]);
    let mut state = restarted(&before.kept());
    assert!(state.world(200).is_err());
    state.fold(look(vec![well(0), lost(), well(2)]), 200);
    // It does not answer, and is still in the picture.
    let machine = state.world(200).unwrap();
    assert_eq!(machine.gpus.len(), 3);
    assert!(matches!(&machine.gpus[1].health,
        Health::Sick { reason, xid: Some(79) } if reason == "nvml: GPU is lost"));
    let mut state = restarted(&before.kept());
    state.fold(all_well(), 200);
    assert_eq!(sick(&state, 200), ["GPU-1"]);
}

#[test]
fn an_error_that_passes_needs_quiet() {
    let mut state = after([(100, all_well()), (101, xid(0, 63)), (200, xid(0, 63))]);
    assert_eq!(state.watchable().len(), 3);
    for (now, expected) in [(399, 1), (499, 1), (500, 0)] {
        state.fold(all_well(), now);
        assert_eq!(sick(&state, now).len(), expected, "{now}");
    }
    // The worse one stays, or the first.
    for (codes, expected) in [([63, 79], 79), ([79, 63], 79), ([63, 94], 63)] {
        let [one, other] = codes.map(|code| xid(0, code));
        let state = after([(100, all_well()), (101, one), (102, other)]);
        assert_eq!(state.kept().verdicts["GPU-0"].xid, expected);
    }
}

#[test]
fn errors_of_programs_say_nothing() {
    for code in [13, 31, 43, 45, 68, 109, 500] {
        let state = after([(100, all_well()), (101, xid(0, code))]);
        assert_eq!(sick(&state, 101), [""; 0], "{code}");
    }
}

#[test]
fn an_error_of_a_mig_device_is_its_own() {
    let on = |instance, code| after([(100, all_well()), (101, xid_of(2, code, instance))]);
    assert_eq!(sick(&on(Some((1, Some(0))), 63), 101), ["MIG-2-1"]);
    assert_eq!(sick(&on(Some((2, None)), 63), 101), ["MIG-2-2"]);
    // Of no known one, or of the GPU as a whole.
    for (instance, code) in [(Some((9, None)), 63), (None, 63), (Some((1, None)), 79)] {
        assert_eq!(sick(&on(instance, code), 101), ["GPU-2"]);
    }
    // Made anew, it is well.
    let mut state = on(Some((1, None)), 63);
    let mut without = gpu(2);
    without.migs.remove(0);
    let without = Ok(Found {
        gpu: without,
        needs: None,
    });
    state.fold(look(vec![well(0), well(1), without]), 102);
    state.fold(all_well(), 103);
    assert_eq!(sick(&state, 103), [""; 0]);
}

#[test]
fn the_driver_says_what_a_gpu_needs() {
    let mut state = after([(100, look(vec![well(0), needing(1, 1)]))]);
    assert_eq!(sick(&state, 100), ["GPU-1"]);
    state.fold(look(vec![well(0), needing(1, 0)]), 105);
    assert_eq!(sick(&state, 105), [""; 0]);
    // A verdict ends when it needs nothing any more, or has never.
    let mut state = after([
        (100, look(vec![needing(0, 0)])),
        (101, xid(0, 95)),
        (102, look(vec![needing(0, 1)])),
    ]);
    for (now, expected) in [(110, 1), (112, 0)] {
        state.fold(look(vec![needing(0, 0)]), now);
        assert_eq!(sick(&state, now).len(), expected, "{now}");
    }
    let mut state = after([(100, look(vec![needing(0, 0)])), (101, xid(0, 95))]);
    for (now, expected) in [(112, 1), (401, 0)] {
        state.fold(look(vec![needing(0, 0)]), now);
        assert_eq!(sick(&state, now).len(), expected, "{now}");
    }
}

#[test]
fn gpus_come_and_go() {
    let mut state = after([(100, all_well())]);
    // One fails: which one is known by its index.
    state.fold(look(vec![lost(), well(1), well(2)]), 105);
    assert_eq!(sick(&state, 105), ["GPU-0"]);
    state.fold(all_well(), 110);
    assert_eq!(sick(&state, 110), [""; 0]);
    // One is removed, and another one comes in its place.
    let mut other = gpu(1);
    other.uuid = "GPU-other".into();
    state.fold(xid(1, 79), 111);
    state.fold(look(vec![well(0), well(2)]), 112);
    assert_eq!(sick(&state, 112), ["GPU-1"]);
    let other = Ok(Found {
        gpu: other,
        needs: None,
    });
    state.fold(look(vec![well(0), other, well(2)]), 113);
    assert_eq!(sick(&state, 113), [""; 0]);
    state.fold(look(vec![well(0)]), 114);
    assert_eq!(state.world(114).unwrap().gpus.len(), 1);
}

#[test]
fn without_an_answer_the_last_one_counts_for_a_while() {
    let silence = || News::Look(Look::Silence("nvml: no answer within 10 s".into()));
    let mut state = state();
    state.fold(silence(), 90);
    assert_eq!(state.world(90).unwrap_err(), "nvml: no answer within 10 s");
    state.fold(all_well(), 100);
    state.fold(silence(), 160);
    assert_eq!(sick(&state, 160), [""; 0]);
    state.fold(News::Nothing, 161);
    assert_eq!(sick(&state, 161), ["GPU-0", "GPU-1", "GPU-2"]);
    state.fold(all_well(), 170);
    assert_eq!(sick(&state, 170), [""; 0]);
}

#[test]
fn a_driver_that_was_loaded_anew_has_reset_its_gpus() {
    let gone = |is_loaded| {
        let reason = "nvml error: driver not loaded".into();
        News::Look(Look::NoDriver { reason, is_loaded })
    };
    for (is_loaded, expected) in [(false, 0), (true, 1)] {
        let mut state = after([(100, all_well()), (101, xid(1, 79)), (102, gone(is_loaded))]);
        assert!(state.world(102).is_err());
        assert!(state.watchable().is_empty());
        state.fold(all_well(), 200);
        assert_eq!(sick(&state, 200).len(), expected, "{is_loaded}");
    }
}

fn any_news() -> impl Strategy<Value = News> {
    let answer = |number| {
        prop_oneof![
            4 => Just(well(number)),
            1 => (0..3u32).prop_map(move |needs| needing(number, needs)),
            1 => Just(lost()),
        ]
    };
    let codes = prop::sample::select(vec![13, 31, 63, 79, 94, 119, 154, 500]);
    let instance = prop::option::of((1..4u32, prop::option::of(0..2u32)));
    prop_oneof![
        4 => (answer(0), answer(1), answer(2)).prop_map(|(a, b, c)| look(vec![a, b, c])),
        3 => (0..2u32, codes, instance).prop_map(|(gpu, code, instance)| xid_of(gpu, code, instance)),
        1 => Just(News::Nothing),
        1 => any::<bool>().prop_map(|is_loaded| News::Look(Look::NoDriver {
            reason: "gone".into(),
            is_loaded,
        })),
        1 => Just(News::Look(Look::Silence("slow".into()))),
    ]
}

proptest! {
    /// What comes in is any sequence; what follows is a restart, and the same look in both.
    #[test]
    fn restarts_and_repetitions_change_nothing(steps in vec((0..40u64, any_news()), 0..40)) {
        let (mut now, mut state) = (1000, state());
        for (pause, news) in steps {
            now += pause;
            let before = state.clone();
            state.fold(news.clone(), now);
            match &news {
                // Said twice is said once.
                News::Look(_) | News::Event(_) => {
                    let once = (state.world(now), state.kept());
                    state.fold(news.clone(), now);
                    prop_assert_eq!(once, (state.world(now), state.kept()));
                }
                News::Nothing => prop_assert_eq!(before.kept(), state.kept()),
            }
            if let News::Event(GpuEvent::Xid { code: 13 | 31 | 500, .. }) = news {
                prop_assert_eq!(before.world(now), state.world(now));
            }
            // Events and verdicts are of GPU 0 and 1.
            let kept = state.kept();
            prop_assert!(!kept.verdicts.contains_key("GPU-2"));
            let mut other = restarted(&kept);
            prop_assert_eq!(&other.kept(), &kept);
            let mut this = state.clone();
            for state in [&mut this, &mut other] {
                state.fold(all_well(), now);
            }
            prop_assert_eq!(this.world(now), other.world(now));
            prop_assert_eq!(this.kept(), other.kept());
        }
    }
}
