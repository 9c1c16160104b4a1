//! The forebay binary.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    forebay_rt::process::refuse_huge_pages();
    let code = forebay_server::boot::main(std::env::args_os().collect());
    std::process::exit(code);
}
