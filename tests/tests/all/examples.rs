//! The programs of `client/examples`.

#![allow(dead_code, reason = "each has a main function for people")]

#[path = "../../../client/examples/branch_solve_merge.rs"]
pub mod branch_solve_merge;
#[path = "../../../client/examples/few_shot_select.rs"]
pub mod few_shot_select;
#[path = "../../../client/examples/json_extraction.rs"]
pub mod json_extraction;
#[path = "../../../client/examples/long_document_rag.rs"]
pub mod long_document_rag;
#[path = "../../../client/examples/multi_turn_chat.rs"]
pub mod multi_turn_chat;
#[path = "../../../client/examples/react_agent.rs"]
pub mod react_agent;
#[path = "../../../client/examples/self_consistency.rs"]
pub mod self_consistency;
#[path = "../../../client/examples/skeleton_of_thought.rs"]
pub mod skeleton_of_thought;
#[path = "../../../client/examples/tree_of_thought.rs"]
pub mod tree_of_thought;
