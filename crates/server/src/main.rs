//! The forebay binary.

#[global_allocator]
static ALLOCATOR: forebay_rt::memory::Allocator = forebay_rt::memory::Allocator;

fn main() {
    forebay_rt::process::refuse_huge_pages();
    let code = forebay_server::boot::main(std::env::args_os().collect());
    std::process::exit(code);
}
