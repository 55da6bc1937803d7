//! `hearth chat`, with a server and with a model in the same process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

// The fake model that the HTTP tests use.
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
#[path = "../../api/tests/http/fake.rs"]
mod fake;

use hearth_client::{ChatOptions, Client};
use hearth_engine::EngineConfig;
use hearth_server::chat::{Conversation, Partner, Reply};

use fake::{Behaviour, MODEL, TestServer, served};

async fn says_the_alphabet(partner: Partner) {
    let mut conversation = Conversation::new(Some("Spell."));
    conversation.say("hello");
    let options = ChatOptions {
        temperature: Some(0.0),
        ..ChatOptions::default()
    };
    let answer = async |conversation: &Conversation, options: &ChatOptions| {
        let (mut reply, mut shown) = (Reply::default(), String::new());
        let mut show = |text: &str| {
            shown += text;
            Ok(())
        };
        partner
            .answer(&conversation.messages, options, &mut reply, &mut show)
            .await?;
        assert_eq!(shown, reply.text);
        anyhow::Ok(reply)
    };
    let whole = answer(&conversation, &options).await.unwrap();
    assert_eq!(whole.text, "abcdefghijklmnopqrstuvwxyz");
    // The token that ends an answer counts, too.
    assert_eq!(whole.tokens, Some(27));
    let short = ChatOptions {
        max_tokens: Some(3),
        ..options
    };
    let cut = answer(&conversation, &short).await.unwrap();
    assert_eq!((cut.text.as_str(), cut.tokens), ("abc", Some(3)));
    conversation.say("unspeakable");
    let refused = answer(&conversation, &short).await;
    assert!(refused.unwrap_err().to_string().contains("refused"));
}

#[tokio::test]
async fn a_chat_with_a_server_shows_the_answer_as_it_comes() {
    let server = TestServer::plain();
    let client = Client::new(&server.url).unwrap();
    let model = client.first_model().await.unwrap();
    assert_eq!(model, MODEL);
    says_the_alphabet(Partner::Remote { client, model }).await;
}

#[tokio::test]
async fn a_chat_in_this_process_says_the_same() {
    let served = served(Behaviour::default(), EngineConfig::default());
    says_the_alphabet(Partner::Local(Box::new(served))).await;
}
