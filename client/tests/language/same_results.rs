//! The results of a program do not depend on how it is run.

use hearth_client::lang::Frontend;
use proptest::prelude::*;

use super::fake::Fake;
use super::random::{Size, naive, program, run};

const SIZE: Size = Size {
    statements: 12,
    max_tokens: 6,
    states: 9,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_program_gives_what_a_naive_interpreter_gives(seed: u64) {
        let graph = program(seed, SIZE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            for single in [false, true] {
                let fake = Fake { single, ..Fake::default() };
                let expected = naive(&fake, &graph).await;
                let mut frontends = vec![
                    Frontend::new(fake.clone()),
                    Frontend::new(fake.clone()).streaming().in_flight(2),
                ];
                // Where a stop cuts a token in two, a call of its own would go on in another way.
                if single {
                    frontends.push(Frontend::new(fake.clone()).speculating(8));
                }
                for frontend in frontends {
                    let given = run(&frontend, &graph).await;
                    prop_assert_eq!(&given, &expected, "{:?} {}", frontend, graph.dot());
                }
            }
            Ok(())
        })?;
    }
}
