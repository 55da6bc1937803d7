/// The number in the environment variable `name`, which enlarges a run for recorded results, or
/// else `usual`.
pub fn enlarged(name: &str, usual: usize) -> usize {
    std::env::var(name).map_or(usual, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{name} must be a number, given {text}"))
    })
}
