use super::*;

fn axis(text: &str) -> Axis {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

fn values(text: &str) -> Vec<String> {
    axis(text).values().to_vec()
}

fn refused(text: &str) -> String {
    text.parse::<Axis>().unwrap_err().to_string()
}

#[test]
fn a_list_is_split_at_commas_outside_of_brackets_and_quotes() {
    assert_eq!(values("irq.0.load=0, 0.5 ,0.95"), ["0", "0.5", "0.95"]);
    assert_eq!(values("seed=7"), ["7"]);
    assert_eq!(
        values("irq.0.cost={min='1us',max='2us'},5us,\"6us\",'7,8'"),
        ["{min='1us',max='2us'}", "5us", "\"6us\"", "'7,8'"]
    );
    assert_eq!(values("policy.compare=[],['rq_clock','rq_clock_task']").len(), 2);
    assert_eq!(axis(" irq[0].load =0").key(), "irq[0].load");
}

#[test]
fn a_range_has_both_ends_and_even_steps() {
    assert_eq!(values("a=0..0.95/20")[..4], ["0", "0.05", "0.1", "0.15"]);
    assert_eq!(values("a=0..0.95/20").last().unwrap(), "0.95");
    assert_eq!(values("a=1kHz..4kHz/4"), ["1kHz", "2kHz", "3kHz", "4kHz"]);
    assert_eq!(values("a=0..10ms/3"), ["0ms", "5ms", "10ms"]);
    assert_eq!(values("a=1us..2us/4"), ["1us", "1.333us", "1.666us", "2us"]);
    assert_eq!(values("a=2..-2/5"), ["2", "1", "0", "-1", "-2"]);
    assert_eq!(values("a=-0.5..0/2"), ["-0.5", "0"]);
}

#[test]
fn what_is_no_axis_says_why_and_what_to_write() {
    assert!(refused("load").contains("`load` names no key; write for example"));
    assert!(refused("=1").contains("names no key"));
    for text in ["a=", "a=1,,2", "a=1,"] {
        assert!(refused(text).contains("`a` has an empty value"), "{text}");
    }
    assert_eq!(refused("a=1,2,1"), "`a` has the value `1` twice");
    for (text, why) in [
        ("a=0..1", "`/` and a count are missing"),
        ("a=0..1/x", "the count is not a number"),
        ("a=0..1/1", "the count must be 2"),
        ("a=0..1/100001", "the count must be 2"),
        ("a=x..1/2", "its ends are not numbers"),
        ("a=1.../2", "its ends are not numbers"),
        ("a=0..9999999999999999/2", "its ends are not numbers"),
        ("a=1ms..2us/2", "different units"),
        ("a=1..2us/2", "different units"),
    ] {
        assert!(refused(text).contains(why), "{text}: {}", refused(text));
    }
    assert!(refused("a=1us..1us/3").contains("twice"));
}

#[test]
fn the_last_axis_changes_fastest() {
    let grid = Grid::new(vec![axis("a=1,2"), axis("b=x,y,z")]).unwrap();
    assert_eq!(grid.cells(), 6);
    let cells: Vec<String> = (0..6).map(|i| grid.values(i).concat()).collect();
    assert_eq!(cells, ["1x", "1y", "1z", "2x", "2y", "2z"]);
    assert_eq!(grid.sets(5), ["a=2", "b=z"]);
    assert_eq!(Grid::new(Vec::new()).unwrap().cells(), 1);
}

#[test]
fn a_grid_that_is_too_large_or_sets_a_key_twice_is_refused() {
    let large = Grid::new(vec![axis("a=1..1000/1000"), axis("b=1..101/101")]);
    assert_eq!(
        large.unwrap_err().to_string(),
        "1000 x 101 make 101000 cells; at most 100000: give an axis fewer values"
    );
    let twice = Grid::new(vec![axis("a=1"), axis("b=1"), axis("a=2")]);
    assert_eq!(
        twice.unwrap_err().to_string(),
        "two axes set a; give all of its values to one of them"
    );
}
