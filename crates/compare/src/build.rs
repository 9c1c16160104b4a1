//! Builds the Forebay that is measured.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The root of the repository.
pub fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.ancestors().nth(2).unwrap_or(own)
}

/// Cargo's target directory: this program is `<target>/release/forebay-compare`, or debug in place of
/// release.
pub fn target() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let target = exe.parent().and_then(Path::parent).ok_or("no target directory")?;
    Ok(target.to_owned())
}

/// Forebay as `cargo build --release` makes it.
pub fn release() -> Result<PathBuf, String> {
    forebay(&target()?, &mut cargo())
}

/// Forebay that writes profiles of its run to `profiles`, built in `target`.
pub fn instrumented(target: &Path, profiles: &Path) -> Result<PathBuf, String> {
    forebay(target, cargo().env("FOREBAY_PROFILE", profiles))
}

fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // It would take the place of ours, which adds the profile.
    cargo.env_remove("RUSTC_WRAPPER");
    cargo
}

fn forebay(target: &Path, cargo: &mut Command) -> Result<PathBuf, String> {
    let status = cargo
        .args(["build", "--release", "-p", "forebay-server", "--bin", "forebay", "--target-dir"])
        .arg(target)
        // Cargo's configuration lies there, which names the profile.
        .current_dir(workspace())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err("forebay does not build".to_owned());
    }
    Ok(target.join("release/forebay"))
}
