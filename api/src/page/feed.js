// The stream of /live, and the reading of any stream of server-sent events.

/** Yields the events of a response as [name, data]. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        let name = "message";
        const data = [];
        for (const line of part.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          else if (line.startsWith("data: ")) data.push(line.slice(6));
        }
        if (data.length) yield [name, data.join("\n")];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The message of a refusal, in whichever API's words. */
export const refusal = async (response) => {
  const body = await response.json().catch(() => ({}));
  const error = body.error ?? body;
  return error.message ?? (typeof error === "string" ? error : `the server answered ${response.status}`);
};

const pause = (ms, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

/**
 * Watches the server until `signal` aborts. `on` has a function for each event, for `lost` and for
 * `refused`, after which nothing more is asked until the next call.
 */
export const watch = async (key, on, signal) => {
  let wait = 500;
  while (!signal.aborted) {
    try {
      const headers = key ? { authorization: `Bearer ${key}` } : {};
      const response = await fetch("live", { headers, signal });
      if (response.status === 401 || response.status === 403) {
        return on.refused(await refusal(response), Boolean(key));
      }
      if (!response.ok) throw new Error(await refusal(response));
      wait = 500;
      for await (const [name, data] of events(response)) on[name]?.(JSON.parse(data));
    } catch (error) {
      if (signal.aborted) return;
    }
    on.lost();
    await pause(wait, signal);
    wait = Math.min(wait * 2, 8000);
  }
};
