//! The `rqscope` program.

fn main() -> std::process::ExitCode {
    rqscope::app::main()
}
