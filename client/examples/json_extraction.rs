//! Extraction into a type. It shows a JSON Schema that a Rust type derives, and a typed result.

use hearth_client::Client;
use hearth_client::backends::Server;
use hearth_client::lang::{Error, Frontend, generate};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Character {
    house: House,
    wizard: bool,
    /// The number of their friends.
    #[schemars(range(min = 0, max = 9))]
    friends: u8,
}

#[derive(Debug, Deserialize, JsonSchema)]
enum House {
    Gryffindor,
    Slytherin,
    Ravenclaw,
    Hufflepuff,
}

pub async fn run(frontend: &Frontend) -> Result<String, Error> {
    let mut s = frontend.state();
    s += "Harry is a wizard of Gryffindor with two friends.\nAs JSON: ";
    s += generate("character")
        .json_of::<Character>()
        .max_tokens(200)
        .temperature(0.0);
    let character: Character = s.get("character").await?;
    Ok(format!(
        "house {:?}, wizard {}, friends {}",
        character.house, character.wizard, character.friends
    ))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1);
    let client = Client::new(url.as_deref().unwrap_or("http://127.0.0.1:8000"))?;
    println!("{}", run(&Frontend::new(Server::new(client))).await?);
    Ok(())
}
