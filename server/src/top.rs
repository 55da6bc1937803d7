//! `hearth top`: a view of a running server in the terminal, from `/metrics` and `/server_info`.
//!
//! - `page`: the numbers of a page of metrics.
//! - `frame`: one picture of the view.

mod frame;
mod page;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hearth_client::Client;

use crate::cli::TopArgs;
use frame::{Moment, frame};
use page::Page;

/// The sequences of a terminal that `top` uses: a second screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Begins a picture over the one before. Each line erases what is left of the old one.
const HOME: &str = "\x1b[H";
const END_OF_LINE: &str = "\x1b[K\n";
const REST_OF_SCREEN: &str = "\x1b[J";

/// Shows the server at `args.url` until it is interrupted, or once.
///
/// # Errors
/// The server cannot be reached, refuses the key, or shows no metrics under OpenTelemetry's names.
pub fn run(args: &TopArgs) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let bearer = args.api_key.as_ref().map(|key| format!("Bearer {key}"));
    let headers = bearer.iter().map(|value| ("authorization", value.as_str()));
    let client = Client::with_headers(&args.url, &headers.collect::<Vec<_>>())?;
    let screen = std::io::stdout().is_terminal() && !args.once;
    if screen {
        print!("{ENTER}");
    }
    let shown = runtime.block_on(async {
        tokio::select! {
            shown = show(&client, args, screen) => shown,
            interrupted = tokio::signal::ctrl_c() => Ok(interrupted?),
        }
    });
    if screen {
        print!("{LEAVE}");
        std::io::stdout().flush()?;
    }
    shown
}

async fn show(client: &Client, args: &TopArgs, screen: bool) -> Result<()> {
    let mut before = moment(client).await?;
    loop {
        tokio::time::sleep(Duration::from_secs_f64(args.interval)).await;
        let now = moment(client).await?;
        let text = frame(&args.url, &before, &now);
        let mut out = std::io::stdout().lock();
        if screen {
            let text = text.replace('\n', END_OF_LINE);
            write!(out, "{HOME}{text}{REST_OF_SCREEN}")?;
        } else {
            writeln!(out, "{text}")?;
        }
        out.flush()?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// The numbers of the server now.
async fn moment(client: &Client) -> Result<Moment> {
    let text = client.get_text("/metrics").await;
    let page = Page::new(&text.context("cannot read the server's metrics")?);
    if page.sum("llm_num_requests_running").is_none() {
        bail!(
            "the server serves no model yet, or shows no metrics under OpenTelemetry's names: \
             its metrics_names must include otel, as by default"
        );
    }
    let info = client.get("/server_info").await;
    Ok(Moment {
        at: Instant::now(),
        page,
        info: info.context("cannot read /server_info")?,
    })
}
