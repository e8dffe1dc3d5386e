//! A grid on a real kernel.

use super::{CACHE, NEWEST, command_in, kernel};
use crate::grid::rows;
use crate::program::Running;

#[test]
fn two_by_two_cells_give_a_row_each_with_figures_seen_from_outside() {
    let Some(linux) = kernel(NEWEST) else { return };
    linux.snapshot();
    let vmlinux = linux.file("vmlinux");
    let axes = ["--x", "irq.nic.load=0,0.3", "--y", "steal.0.fraction=0,0.5"];
    let args = ["--set", "duration=40ms", "--format", "json", "--kernel", &vmlinux];
    let args = [&["grid", "load-grid"], &axes[..], &args].concat();
    let rows = rows(&Running::start(&mut command_in(&CACHE, args)).wait().ends_with(0));
    assert_eq!(rows.len(), 4);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!((&row["guest"], &row["verdict"]), (&"linux".into(), &"pass".into()), "{row}");
        let of = |key: &str| row[key].as_i64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert_eq!(of("cell"), i as i64);
        assert_eq!(of("injected_steal_ns"), [0, 20_000_000][i % 2]);
        assert_eq!(of("injected_irq_ns") > 1_000_000, i >= 2, "{row}");
        assert!(of("tg_calls") > 0 && of("tg_published") > 0, "{row}");
        assert_eq!(of("clock_reads_saved"), of("tg_calls"));
        // 7.3 writes at what is above zero, and all groups of the scenario are two or three deep.
        let (writes, levels) = (of("psi_seqcount_writes"), of("psi_levels"));
        assert_eq!(writes, of("psi_delta_positive"), "{row}");
        assert!(levels >= writes && levels <= 3 * writes, "{row}");
    }
}
