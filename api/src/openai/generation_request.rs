//! The request fields that OpenAI's chats and text completions share.

/// Declares a request type with the shared fields and its own. It is a macro, because serde's
/// `flatten` neither refuses unknown fields nor keeps the path of a wrong one.
macro_rules! generation_request {
    ($(#[$doc:meta])* $name:ident { $($(#[$own:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$own])* pub $field: $type,)*
            pub model: Option<String>,
            pub max_tokens: Option<i64>,
            pub min_tokens: Option<i64>,
            pub temperature: Option<f64>,
            pub top_p: Option<f64>,
            pub top_k: Option<i64>,
            pub min_p: Option<f64>,
            pub repetition_penalty: Option<f64>,
            pub presence_penalty: Option<f64>,
            pub frequency_penalty: Option<f64>,
            pub logit_bias: Option<$crate::fields::sampling::LogitBias>,
            pub seed: Option<i64>,
            pub n: Option<i64>,
            pub stop: Option<$crate::fields::wire::OneOrMany>,
            /// SGLang's: a match of one of these ends the text, and stays in it.
            pub stop_regex: Option<$crate::fields::wire::OneOrMany>,
            pub stop_token_ids: Option<$crate::fields::sampling::TokenIds>,
            pub include_stop_str_in_output: Option<bool>,
            pub ignore_eos: Option<bool>,
            pub skip_special_tokens: Option<bool>,
            /// SGLang's name for `include_stop_str_in_output`.
            pub no_stop_trim: Option<bool>,
            pub return_hidden_states: Option<bool>,
            pub stream: Option<bool>,
            pub stream_options: Option<
                $crate::fields::wire::Object<$crate::fields::sampling::StreamOptions>,
            >,
            /// Requests with different salts share no cached prefixes (vLLM's name).
            pub cache_salt: Option<String>,
            /// Requests of a higher priority go first (SGLang's field and direction).
            pub priority: Option<i64>,
            pub response_format: Option<
                $crate::fields::wire::Object<
                    $crate::fields::structured::ResponseFormat,
                >,
            >,
            pub structured_outputs: Option<
                $crate::fields::wire::Object<
                    $crate::fields::structured::StructuredOutputs,
                >,
            >,
            pub guided_json: Option<$crate::fields::structured::GivenSchema>,
            pub guided_regex: Option<String>,
            pub guided_choice: Option<$crate::fields::structured::Choices>,
            pub guided_grammar: Option<String>,
            pub regex: Option<String>,
            pub json_schema: Option<$crate::fields::structured::GivenSchema>,
            pub ebnf: Option<String>,
            pub grammar: Option<String>,
            pub json_whitespace: Option<$crate::fields::structured::JsonWhitespace>,
            /// True if tokens that the grammar forces are appended without sampling them.
            pub jump_forward: Option<bool>,
            /// True if the output is steered to its end before its tokens run out.
            pub complete: Option<bool>,
            /// `false` drafts nothing for this request.
            pub speculative: Option<bool>,
            /// The name of an adapter (SGLang's field).
            pub lora_path: Option<String>,
            /// Adapters by their ids, with factors (llama-server's field).
            pub lora: Option<$crate::fields::adapters::ScaledAdapters>,
            /// A label for the request's trace.
            pub user: Option<String>,
            /// More labels for the trace.
            pub metadata: Option<$crate::fields::sampling::Labels>,
            /// SGLang's: the name of the request, or one for each prompt.
            pub rid: Option<$crate::fields::each::Each<String>>,
            pub bootstrap_host: Option<$crate::fields::each::Each<String>>,
            pub bootstrap_port: Option<
                $crate::fields::each::Each<$crate::fields::disaggregation::WholeNumber>,
            >,
            pub bootstrap_room: Option<
                $crate::fields::each::Each<$crate::fields::disaggregation::WholeNumber>,
            >,
            pub data_parallel_rank: Option<i64>,
            pub data_parallel_rank_decode: Option<i64>,
            pub routed_dp_rank: Option<i64>,
            pub disagg_prefill_dp_rank: Option<i64>,
        }

        impl $name {
            /// Moves out the fields of a router that pairs prefill with decode servers.
            pub fn take_disaggregation(
                &mut self,
            ) -> $crate::fields::disaggregation::Disaggregation {
                $crate::fields::disaggregation::Disaggregation {
                    bootstrap_host: self.bootstrap_host.take(),
                    bootstrap_port: self.bootstrap_port.take(),
                    bootstrap_room: self.bootstrap_room.take(),
                    data_parallel_rank: self.data_parallel_rank,
                    data_parallel_rank_decode: self.data_parallel_rank_decode,
                    routed_dp_rank: self.routed_dp_rank,
                    disagg_prefill_dp_rank: self.disagg_prefill_dp_rank,
                }
            }

            /// The adapter that the request asks for.
            ///
            /// # Errors
            /// 404 for an unknown model, 400 for an unknown adapter.
            pub fn choose(
                &self,
                served: &$crate::served::Served,
            ) -> Result<$crate::adapters::Choice, $crate::error::ApiError> {
                $crate::fields::adapters::choose(
                    served,
                    self.model.as_deref(),
                    self.lora_path.as_deref(),
                    self.lora.as_ref(),
                )
            }

            /// Moves the shared fields out.
            pub fn take_sampling(&mut self) -> $crate::fields::sampling::SamplingFields {
                $crate::fields::sampling::SamplingFields {
                    min_tokens: self.min_tokens,
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    repetition_penalty: self.repetition_penalty,
                    presence_penalty: self.presence_penalty,
                    frequency_penalty: self.frequency_penalty,
                    logit_bias: self.logit_bias.take().unwrap_or_default(),
                    seed: self.seed,
                    n: self.n,
                    stop: self.stop.take().unwrap_or_default(),
                    stop_regex: self.stop_regex.take().unwrap_or_default(),
                    stop_token_ids: self.stop_token_ids.take().unwrap_or_default(),
                    include_stop_str_in_output: self.include_stop_str_in_output.unwrap_or(false)
                        || self.no_stop_trim.unwrap_or(false),
                    return_hidden_states: self.return_hidden_states.unwrap_or(false),
                    ignore_eos: self.ignore_eos.unwrap_or(false),
                    skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
                    stream: self.stream.unwrap_or(false),
                    stream_options: self.stream_options.take().map(|options| options.0),
                    cache_salt: self.cache_salt.take(),
                    priority: self.priority,
                    structured: $crate::fields::structured::StructuredFields {
                        response_format: self.response_format.take().map(|format| format.0),
                        structured_outputs: self.structured_outputs.take().map(|given| given.0),
                        guided_json: self.guided_json.take(),
                        guided_regex: self.guided_regex.take(),
                        guided_choice: self.guided_choice.take(),
                        guided_grammar: self.guided_grammar.take(),
                        regex: self.regex.take(),
                        json_schema: self.json_schema.take(),
                        ebnf: self.ebnf.take(),
                        grammar: self.grammar.take(),
                        // In OpenAI's API this is one of the response formats.
                        structural_tag: None,
                        json_whitespace: self.json_whitespace,
                        options: $crate::grammars::GrammarOptions {
                            jump_forward: self.jump_forward,
                            complete: self.complete,
                        },
                        calls: None,
                    },
                    user: self.user.take(),
                    labels: self.metadata.take().unwrap_or_default(),
                }
            }
        }
    };
}
pub(super) use generation_request;
