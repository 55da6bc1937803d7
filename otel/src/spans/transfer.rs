//! The span of a transfer of keys and values (`kv_transfer`).

use opentelemetry::trace::{Span as _, SpanKind, Status, Tracer};
use opentelemetry::{Context, KeyValue};

use super::attributes::count;
use super::recorder::Spans;
use crate::catalog::ERROR;
use crate::records::{Clock, KvTransfer};

impl Spans {
    /// Records a transfer that has ended, from the moment when this server was ready for it.
    pub(super) fn transfer(&self, transfer: &KvTransfer, clock: Clock, parent: &Context) {
        let direction = if transfer.sends { "send" } else { "receive" };
        let builder = self
            .tracer
            .span_builder("kv_transfer")
            .with_kind(SpanKind::Internal)
            .with_start_time(clock.system(transfer.asked))
            .with_attributes([
                KeyValue::new("llm.kv_transfer.direction", direction),
                count("llm.kv_transfer.tokens", transfer.tokens),
                KeyValue::new(
                    "llm.kv_transfer.bytes",
                    i64::try_from(transfer.bytes).unwrap_or(i64::MAX),
                ),
            ]);
        let mut span = builder.start_with_context(&self.tracer, parent);
        for (name, at) in [("peer", transfer.met), ("first_kv", transfer.began)] {
            if let Some(at) = at {
                span.add_event_with_timestamp(name, clock.system(at), Vec::new());
            }
        }
        if let Some(error) = &transfer.error {
            span.set_attribute(KeyValue::new(ERROR, "kv_transfer"));
            span.set_status(Status::error(error.clone()));
        }
        span.end_with_timestamp(clock.system(transfer.ended));
    }
}
