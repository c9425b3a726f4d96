//! Keeps a [`World`] current: a poll.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::{Source, Watch, World, look};

const INTERVAL: Duration = Duration::from_secs(5);

/// Starts the watch, in a thread of its own that lives as long as the program. The first world is there when this returns.
pub fn watched(source: Source) -> Watch {
    let now = move || look::machine(&source).map_err(|error| look::reason(&error));
    let (sender, receiver) = watch::channel(Arc::new(now()));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(INTERVAL);
            let world: World = now();
            sender.send_if_modified(|known| {
                let is_new = **known != world;
                if is_new {
                    *known = Arc::new(world);
                }
                is_new
            });
        }
    });
    receiver
}
