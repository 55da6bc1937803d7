//! Copies of small tensors from the device to the host that are queued early and waited for later.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::future::block_on;
use cubecl::server::CopyDescriptor;

use crate::Fetched;

/// Queues the copy of `ids`, contiguous and i32, when it is called. A read that is queued only when
/// it is waited for would come after all the work submitted until then.
pub fn fetch<R: CubeRuntime>(ids: CubeTensor<R>) -> Fetched {
    let mut read = Box::pin(async move {
        let (shape, strides) = (ids.meta.shape().clone(), ids.meta.strides().clone());
        let size = ids.elem_size();
        let binding = ids.handle.clone().binding();
        let copy = CopyDescriptor::new(binding, shape, strides, size);
        let read = ids.client.read_one_tensor_async(copy);
        // CUDA's future waits for the device as soon as it is polled.
        let mut enqueued = false;
        poll_fn(|_| match std::mem::replace(&mut enqueued, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        })
        .await;
        read.await
    });
    let begun = read.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    debug_assert!(begun.is_pending());
    Box::new(move || {
        let bytes = block_on(read).map_err(|error| format!("{error:?}"))?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    })
}
