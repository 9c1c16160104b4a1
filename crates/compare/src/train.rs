//! Renews `profile/`: Forebay, built to write a profile of its run, under the load of the rows.
//!
//! Invariant: a row counts as much as any other, however many instructions it takes: what is done once
//! a request is to be as hot as the loops of compression.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build;
use crate::contender::Who;
use crate::load;
use crate::measure::{self, Plan};
use crate::rows::Row;

/// How often a row is tried.
const TRIES: u32 = 3;

/// What one row left.
struct Part {
    path: PathBuf,
    /// The sum of its counters.
    total: u64,
}

/// Trains on `rows` and writes `forebay.profdata` and `rustc-version` to the folder of profiles.
pub fn run(mut plan: Plan, rows: &[&Row]) -> Result<(), String> {
    let profdata = profdata()?;
    let work = build::target()?.join("train");
    let raw = work.join("profiles");
    // Workers write there too, when they have given up their privileges.
    fs::create_dir_all(&raw)
        .and_then(|()| fs::set_permissions(&raw, fs::Permissions::from_mode(0o777)))
        .map_err(|e| format!("{}: {e}", raw.display()))?;
    plan.forebay = build::instrumented(&work, &raw)?;
    plan.only = Some(Who::Forebay);
    measure::pin_load(&plan);
    collect(&raw)?.iter().for_each(|old| drop(fs::remove_file(old)));

    let mut parts = Vec::new();
    for row in rows {
        println!("{}: {}", row.name, row.what);
        put_under_load(&plan, row)?;
        let path = work.join(format!("{}.profdata", row.name));
        let found = collect(&raw)?;
        merge(&profdata, found.iter().map(|file| file.display().to_string()), &path)?;
        found.iter().for_each(|file| drop(fs::remove_file(file)));
        parts.push(Part { total: total(&profdata, &path)?, path });
    }
    let most = parts.iter().map(|part| part.total).max().unwrap_or_default();
    let weighted = parts.iter().map(|part| {
        let weight = (most / part.total.max(1)).max(1);
        format!("-weighted-input={weight},{}", part.path.display())
    });
    let out = build::workspace().join("profile");
    merge(&profdata, weighted, &out.join("forebay.profdata"))?;
    let version = output(Command::new("rustc").arg("-vV"))?;
    fs::write(out.join("rustc-version"), version).map_err(|e| e.to_string())?;
    name(build::workspace())?;
    println!("{}: of {} rows", out.join("forebay.profdata").display(), parts.len());
    Ok(())
}

/// A row of many is not to cost all the others: a machine that is busy elsewhere may answer the next time.
fn put_under_load(plan: &Plan, row: &Row) -> Result<(), String> {
    for left in (0..TRIES).rev() {
        match measure::measure(plan, row, &mut |_| {}) {
            Ok(_) => break,
            Err(error) if left == 0 => return Err(format!("{}: {error}", row.name)),
            Err(error) => println!("{}: again, as: {error}", row.name),
        }
    }
    Ok(())
}

/// Names the profile among Cargo's settings. Flags make other artefacts of the same symbols: what was
/// compiled with another profile is left alone, and functions keep the names that the profile knows.
fn name(workspace: &Path) -> Result<(), String> {
    let settings = workspace.join(".cargo/config.toml");
    let rewrite = || fs::write(&settings, named(workspace)?);
    rewrite().map_err(|e| format!("{}: {e}", settings.display()))
}

/// The settings as they are to be.
fn named(workspace: &Path) -> io::Result<String> {
    let mut hasher = DefaultHasher::new();
    fs::read(workspace.join("profile/forebay.profdata"))?.hash(&mut hasher);
    let line = |line: &str| match line.starts_with("rustflags") {
        true => format!("rustflags = [\"--cfg=profile_{:016x}\"]\n", hasher.finish()),
        false => format!("{line}\n"),
    };
    Ok(fs::read_to_string(workspace.join(".cargo/config.toml"))?.lines().map(line).collect())
}

/// The `llvm-profdata` that reads what this compiler writes.
fn profdata() -> Result<PathBuf, String> {
    let root = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let version = output(Command::new("rustc").arg("-vV"))?;
    let value = |name| version.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    let host = value("host: ");
    let llvm = value("LLVM version: ").split('.').next().unwrap_or_default();
    let own = Path::new(root.trim()).join(format!("lib/rustlib/{host}/bin/llvm-profdata"));
    let debian = load::find(&format!("llvm-profdata-{llvm}"));
    Some(own).filter(|path| path.is_file()).or(debian).ok_or_else(|| {
        format!("llvm-profdata {llvm} is not installed (rustup: llvm-tools, Debian: llvm-{llvm})")
    })
}

fn collect(raw: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(raw).map_err(|e| format!("{}: {e}", raw.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
}

fn merge(profdata: &Path, inputs: impl Iterator<Item = String>, out: &Path) -> Result<(), String> {
    output(Command::new(profdata).args(["merge", "-sparse", "-o"]).arg(out).args(inputs)).map(drop)
}

fn total(profdata: &Path, profile: &Path) -> Result<u64, String> {
    let text = output(Command::new(profdata).arg("show").arg(profile))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Total count: "));
    line.and_then(|number| number.parse().ok()).ok_or_else(|| format!("no total in:\n{text}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_in_use_is_the_one_that_is_named() {
        let workspace = build::workspace();
        let settings = fs::read_to_string(workspace.join(".cargo/config.toml")).unwrap();
        assert_eq!(settings, named(workspace).unwrap(), "`forebay-compare --train` names it");
    }
}
