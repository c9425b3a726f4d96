//! Runs the commands of docs/recipes.md as they stand there; scripts/test/recipes.sh runs those that need systemd.

use std::fs;

use nvc_testkit::harness::Need::{CgroupV1, Command, Root};
use nvc_testkit::harness::{Need, Test, test};

use super::page;
use super::world::{World, repository};

/// A recipe that runs here.
struct Recipe {
    section: &'static str,
    needs: &'static [Need],
    /// What its reader has already: run before and after it.
    before: &'static str,
    after: &'static str,
    /// How often it lists the GPU.
    lists: usize,
}

/// dockerd with the image, as a machine with the packages has it. `docker compose` is a plugin, or Debian 12's program.
const DOCKER: &str = r#"
nvidia-ctk --quiet runtime configure --runtime=docker
restart() { [ -z "${docker_pid:-}" ] || { kill "$docker_pid"; wait "$docker_pid" || true; }; start_docker > /dev/null; }
restart
tar -C /srv/debian -c . | docker import -c 'ENV PATH=/usr/bin:/bin' - debian > /dev/null
systemctl() { [ "$*" = "restart docker" ] && restart; }
docker() {
  if [ "$1" = compose ] && ! command docker compose version > /dev/null 2>&1; then
    shift
    docker-compose "$@" 2> /dev/null
  else
    command docker "$@" 2> /run/docker.errors || { cat /run/docker.errors; return 1; }
  fi
}
# This machine's dockerd has no network for containers.
echo 'services: {by-gpus: {network_mode: none}, by-runtime: {network_mode: none}}' > network.yaml
export COMPOSE_FILE=compose.yaml:network.yaml
"#;

/// A plain user runs it, without any privilege.
const USER: &str = r#"
cat > /run/recipe
chmod 644 /run/recipe
cd / && setpriv --reuid=1000 --regid=1000 --clear-groups env HOME=/ bash -euo pipefail /run/recipe
"#;

const RECIPES: &[Recipe] = &[
    Recipe {
        section: "docker compose",
        needs: &[
            Root,
            CgroupV1,
            Command("dockerd"),
            Command("docker"),
            Command("docker-compose"),
            Command("runc"),
        ],
        before: DOCKER,
        after: "",
        lists: 2,
    },
    Recipe {
        section: "Swarm",
        needs: &[
            Root,
            CgroupV1,
            Command("dockerd"),
            Command("docker"),
            Command("runc"),
        ],
        before: DOCKER,
        after: "docker service rm smi > /dev/null; docker swarm leave --force > /dev/null",
        lists: 1,
    },
    Recipe {
        section: "MPS",
        needs: &[
            Root,
            CgroupV1,
            Command("dockerd"),
            Command("docker"),
            Command("runc"),
        ],
        before: DOCKER,
        after: "",
        lists: 1,
    },
    Recipe {
        section: "LXC",
        needs: &[Root, Command("lxc-execute")],
        // As a kernel with the driver's modules, whose every procfs has its files.
        before: r#"
mkdir -p /var/lib/lxc
shim lxc-execute <<'END'
#!/bin/sh
exec /usr/bin/lxc-execute --define='lxc.mount.entry=/srv/sim/proc/driver proc/driver none bind' "$@"
END
"#,
        after: "",
        lists: 2,
    },
    Recipe {
        section: "bubblewrap, with the host's files",
        needs: &[Root, Command("bwrap")],
        before: "",
        after: "",
        lists: 1,
    },
    Recipe {
        section: "bubblewrap, with a root of its own",
        needs: &[Root, Command("bwrap")],
        before: "",
        after: "",
        lists: 1,
    },
    Recipe {
        section: "A container by hand",
        needs: &[Root],
        before: "",
        after: "",
        lists: 1,
    },
];

/// Recipes that scripts/test/recipes.sh runs.
const WITH_SYSTEMD: [&str; 2] = ["Rootless docker", "systemd-nspawn"];

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = vec![
        test("recipes_are_all_run", &[], all_are_run),
        test(
            "recipe_of_bubblewrap_needs_no_root",
            &[Root, Command("bwrap")],
            without_root,
        ),
    ];
    for recipe in RECIPES {
        let words = recipe.section.replace(|c: char| !c.is_alphanumeric(), "_");
        let name = format!("recipe_{}", words.to_lowercase());
        tests.push(test(name, recipe.needs, || run(recipe)));
    }
    tests
}

fn document() -> String {
    fs::read_to_string(repository().join("docs/recipes.md")).unwrap()
}

/// Returns a recipe's commands.
fn commands(section: &str) -> String {
    let blocks = page::blocks(&document());
    let of_it = blocks
        .iter()
        .filter(|block| block.section == section && block.language == "sh");
    let text: String = of_it.map(|block| block.text.as_str()).collect();
    assert!(!text.is_empty(), "no commands: {section}");
    text
}

/// Checks that nvidia-smi has listed only the first GPU, or whichever one a swarm has chosen.
#[track_caller]
fn check(world: &World, seen: &str, lists: usize) {
    let is_listed = |line: &&str| line.starts_with("GPU ") || line.starts_with("  MIG ");
    let listed: Vec<_> = seen
        .lines()
        .map(|line| line.trim_end_matches('\r'))
        .filter(is_listed)
        .collect();
    let alternatives = [
        world.driver.listing(0, &[]).repeat(lists),
        world.driver.listing(1, &[0, 1]),
    ];
    let known = if seen.contains("Swarm") { 2 } else { 1 };
    let is_right = alternatives[..known]
        .iter()
        .any(|text| text.lines().eq(listed.iter().copied()));
    assert!(is_right, "{seen}");
}

fn run(recipe: &Recipe) {
    let world = World::new();
    let script = format!(
        "{}\n{}\n{}\n",
        recipe.before,
        commands(recipe.section),
        recipe.after
    );
    check(&world, &world.run(&script), recipe.lists);
}

fn without_root() {
    let world = World::new();
    let recipe = commands("bubblewrap, with the host's files");
    let script = format!("as_user() {{ {USER} }}\nas_user <<'RECIPE'\n{recipe}RECIPE\n");
    check(&world, &world.run(&script), 1);
}

fn all_are_run() {
    let mut expected = page::sections(&document());
    let mut run: Vec<_> = RECIPES.iter().map(|recipe| recipe.section).collect();
    run.extend(WITH_SYSTEMD);
    run.sort_unstable();
    expected.sort_unstable();
    assert_eq!(run, expected);
    let script = fs::read_to_string(repository().join("scripts/test/engines/recipes.sh")).unwrap();
    for section in WITH_SYSTEMD {
        assert!(script.contains(&format!("\"{section}\"")), "{section}");
    }
}
