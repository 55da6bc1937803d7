//! The plots of the stories: beats with alternative sentences.
//!
//! Slots: `{N}` hero's name, `{k}` kind, `{he}` `{He}` `{his}` `{His}` `{him}` pronouns, `{h}` and
//! `{H}` the helper ("the owl", "The owl"), `{a_h}` ("an owl"), `{o}` an object, `{f}` a food.

pub const OPENINGS: &[&str] = &[
    "Once upon a time, {a_t} {k} named {N} lived {p}.",
    "Once upon a time there was {a_t} {k} named {N}, who lived {p}.",
    "There once was {a_t} {k} called {N}. {He} lived {p}.",
    "Long ago, {p}, there lived {a_t} {k} named {N}.",
    "{P}, there lived {a_t} {k} whose name was {N}.",
    "{N} was {a_t} {k} who lived {p}.",
];
pub const HABITS: &[&str] = &[
    "Every morning {he} sang a song to the sun.",
    "Every day {he} went for a long walk.",
    "{He} loved to look at the stars.",
    "{He} liked nothing better than {f}.",
    "{His} best treasure was {a_o}.",
    "{He} had never been far from home.",
    "In the evening {he} always sat outside and listened to the wind.",
    "{He} dreamed of seeing the world.",
    "Everybody knew {him}, because {he} always said hello.",
    "",
    "",
];
pub const ENDINGS: &[&str] = &[
    "From that day on, {N} and {h} were best friends.",
    "That night {N} slept very well.",
    "And {N} never forgot that day.",
    "{N} went home with a smile.",
    "Since then, {N} has told this story to everyone who wants to hear it.",
    "And if you listen in the evening, you can still hear {N} laugh.",
    "They all lived happily ever after.",
    "\"What a day!\" said {N}, and fell asleep.",
];
pub const MORALS: &[&str] = &[
    "A friend is the best treasure.",
    "It is good to ask for help.",
    "Small steps lead far.",
    "Whoever shares has more.",
    "Even the smallest light helps in the dark.",
];

/// Each plot is a list of beats; a story takes one sentence group of each.
pub const PLOTS: &[&[&[&str]]] = &[
    // Something is lost.
    &[
        &[
            "One day {N} could not find {his} {o}.",
            "One morning {his} {o} was gone.",
            "But one windy day {N} lost {his} {o}.",
        ],
        &[
            "{He} looked under the bed, behind the door and in the grass, but it was not there.",
            "{He} looked everywhere and found nothing.",
            "{N} searched the whole day, and in the evening {he} was very sad.",
        ],
        &[
            "Then {he} met {a_h}. \"Why are you so sad?\" asked {h}.",
            "\"Can I help you?\" asked {a_h} who came along.",
            "{A_h} saw {him} and asked what was wrong.",
        ],
        &[
            "Together they followed the small tracks in the sand.",
            "{H} knew every corner, and so they searched together.",
            "\"Let us think,\" said {h}. \"Where did you have it last?\"",
        ],
        &[
            "At last they found the {o} high up in a tree.",
            "And there it was: the {o} lay under a big leaf.",
            "Soon they saw something shine. It was the {o}!",
        ],
        &[
            "{N} thanked {h} and shared {f} with {him_h}.",
            "{N} was so happy that {he} danced.",
        ],
    ],
    // A storm.
    &[
        &[
            "One evening a great storm came.",
            "One night the wind began to howl.",
            "One day dark clouds covered the sky.",
        ],
        &[
            "The rain fell and the thunder rolled, and {N} was afraid.",
            "The water rose and rose, and {N} did not know what to do.",
            "Lightning flashed, and {N} hid under a blanket.",
        ],
        &[
            "Then {he} heard a small voice. It was {a_h}, wet and cold.",
            "Suddenly somebody knocked at the door. It was {a_h}.",
            "Outside, {a_h} called for help.",
        ],
        &[
            "\"Come in,\" said {N}, and gave {h} a warm place and some {f}.",
            "{N} forgot {his} fear, ran out and brought {h} inside.",
            "{N} took {his} {o} and went out to help.",
        ],
        &[
            "They told each other stories until the storm was over.",
            "They sat close together, and soon the thunder seemed far away.",
            "All night they sang songs, louder than the wind.",
        ],
        &[
            "In the morning the sun came out and the air smelled of flowers.",
            "When the sun rose, a rainbow stood in the sky.",
        ],
    ],
    // A new friend.
    &[
        &[
            "But {N} often felt alone.",
            "One thing was missing: {N} had no one to play with.",
            "One day {N} wished for a friend.",
        ],
        &[
            "So {he} packed some {f} and set out to look for one.",
            "So one morning {he} took {his} {o} and walked down the road.",
            "{He} wrote a letter to the moon and asked for help.",
        ],
        &[
            "On the way {he} met {a_h} who was sitting on a stone.",
            "Near the old bridge {he} saw {a_h}.",
            "Behind a hill {he} heard somebody sing. It was {a_h}.",
        ],
        &[
            "\"Would you like to play?\" asked {N}.",
            "At first both of them were too shy to speak.",
            "\"Who are you?\" asked {h}. \"I am {N},\" said {N}.",
        ],
        &[
            "They played until the sun went down.",
            "They shared the {f} and talked for hours.",
            "{H} showed {him} a secret path to a waterfall.",
        ],
    ],
    // A map and a treasure.
    &[
        &[
            "One day {N} found an old map.",
            "One morning {N} found a bottle with a map inside.",
            "One rainy day {N} found a map in a dusty book.",
        ],
        &[
            "A red cross showed the way to a treasure.",
            "\"A treasure!\" cried {N}, and ran to tell {a_h}.",
            "On it somebody had written: follow the river to the tall tree.",
        ],
        &[
            "Together with {a_h} {he} walked over hills and through dark woods.",
            "{N} and {a_h} set out at once.",
            "The way was long, but {a_h} went with {him}.",
        ],
        &[
            "At the tall tree they began to dig.",
            "They had to cross a river on a small boat.",
            "Twice they lost their way, but they did not give up.",
        ],
        &[
            "In the chest there was no gold. There was {a_o} and a note: share it with a friend.",
            "At last they found a box full of {f}.",
            "In the end they found a cave that was full of shining stones.",
        ],
        &[
            "They laughed and carried it home.",
            "\"This is the best treasure of all,\" said {N}.",
        ],
    ],
    // A race.
    &[
        &[
            "One summer there was a great race.",
            "One day {a_h} said: \"I am faster than you!\"",
            "Every year the animals held a race around the lake.",
        ],
        &[
            "Everybody laughed when {N} wanted to run too.",
            "{N} was not the fastest, but {he} wanted to try.",
            "\"I will do my best,\" said {N}.",
        ],
        &[
            "So {he} practised every day, in sun and rain.",
            "{He} trained for many days and ate a lot of {f}.",
            "When the race began, {N} ran slowly and did not stop.",
        ],
        &[
            "In the middle of the race {he} saw that {h} had hurt a foot.",
            "Near the end, {h} fell into a hole and could not get out.",
        ],
        &[
            "{N} did not think twice. {He} stopped and helped.",
            "\"Winning can wait,\" said {N}, and pulled {h} out.",
        ],
        &[
            "They came to the finish together, and everyone cheered.",
            "Both of them were last, but they got the loudest cheers.",
        ],
    ],
    // A seed.
    &[
        &[
            "One spring {N} found a strange seed.",
            "One day {a_h} gave {him} a tiny seed.",
            "One morning a seed fell from the sky, right in front of {N}.",
        ],
        &[
            "{He} put it into the ground and gave it water.",
            "{He} planted it next to the house.",
            "\"What will it be?\" {he} asked, and planted it.",
        ],
        &[
            "For many days nothing happened.",
            "A week went by, and then another one, but nothing grew.",
            "Every day {he} looked, and every day there was only earth.",
        ],
        &[
            "\"You must be patient,\" said {a_h} who flew by.",
            "\"Good things take time,\" said {a_h}.",
            "{N} wanted to give up, but {a_h} told {him} to wait.",
        ],
        &[
            "Then one morning there was a green leaf, and soon a tall tree.",
            "Then it grew and grew until it reached the clouds.",
            "At last a flower opened, and it shone like a lamp.",
        ],
        &[
            "In the autumn the tree gave enough {f} for everyone.",
            "All the neighbours came to see it.",
        ],
    ],
    // Fear of the dark.
    &[
        &[
            "But there was one thing {N} did not like: the dark.",
            "When night came, {N} was always afraid.",
            "{N} had a secret. {He} was afraid of the dark.",
        ],
        &[
            "One night {his} lamp went out.",
            "One evening {he} stayed out too long and could not see the way home.",
            "One night {he} heard a strange noise.",
        ],
        &[
            "{He} wanted to cry, but then {he} saw two friendly eyes. It was {a_h}.",
            "\"Do not be afraid,\" said a voice. It was {a_h}.",
            "Slowly {he} went to look, and there sat {a_h} who was afraid too.",
        ],
        &[
            "{H} pointed at the sky. \"Look, the stars are little lamps.\"",
            "\"In the dark you can hear better,\" said {h}. \"Listen!\"",
            "They held hands and counted the stars.",
        ],
        &[
            "{N} listened to the crickets and the soft wind, and it was beautiful.",
            "{N} had never seen so many stars.",
            "Soon {N} was not afraid any more.",
        ],
    ],
    // A broken bridge, a work done together.
    &[
        &[
            "One day the old bridge broke.",
            "One winter the snow broke the roof of the school.",
            "One day the big wheel of the mill stopped.",
        ],
        &[
            "\"What shall we do now?\" everyone asked.",
            "Nobody knew how to repair it.",
            "Everyone was sad, and some began to shout.",
        ],
        &[
            "{N} had an idea, but {he} could not do it alone.",
            "{N} thought about it all night and made a plan.",
            "\"I know what to do,\" said {N}, \"but I need your help.\"",
        ],
        &[
            "{A_h} brought wood and {N} brought {his} {o}.",
            "First came {a_h}, then all the others.",
            "{N} and {a_h} worked from morning to night.",
        ],
        &[
            "After three days the work was done.",
            "Everyone helped, and soon it was better than before.",
            "When it was ready, they had a feast with {f}.",
        ],
    ],
    // A star falls.
    &[
        &[
            "One night a little star fell from the sky.",
            "One evening {N} saw a small light in the grass. It was a star.",
        ],
        &[
            "\"I want to go home,\" said the star, \"but I do not know how.\"",
            "The star was cold and could hardly shine.",
        ],
        &[
            "{N} warmed it with {his} {o} and gave it some {f}.",
            "{N} put the star on {his} back and climbed the highest hill.",
            "\"I will help you,\" said {N}, and asked {a_h} for advice.",
        ],
        &[
            "There {a_h} was waiting. \"Throw it as high as you can!\" said {h}.",
            "{A_h} took the star and flew up and up.",
            "Together with {a_h} {he} built a very long ladder.",
        ],
        &[
            "The star jumped back to its place and shone brighter than ever.",
            "Soon the star was home, and the whole sky seemed to laugh.",
        ],
        &[
            "Now it shines above {his} house every night.",
            "When {N} looks up, the star winks at {him}.",
        ],
    ],
    // Learning something.
    &[
        &[
            "{N} wanted to learn to swim.",
            "{N} wished to play music.",
            "More than anything, {N} wanted to bake a cake.",
        ],
        &[
            "The first try went very wrong, and everybody laughed.",
            "{He} tried once, {he} tried twice, but it did not work.",
            "At first it was much too hard.",
        ],
        &[
            "{N} sat down and wanted to give up.",
            "\"I will never learn it,\" {he} said.",
        ],
        &[
            "But {a_h} came by and said: \"Try it with me.\"",
            "\"Nobody can do it on the first day,\" said {a_h}.",
            "Then {a_h} showed {him} how to begin.",
        ],
        &[
            "They practised together day after day.",
            "Each day it went a little better.",
            "After a week {he} made only a few mistakes.",
        ],
        &[
            "At the summer party {N} showed what {he} had learned, and everyone clapped.",
            "In the end {N} could do it better than anyone.",
            "Now {N} teaches the little ones.",
        ],
    ],
];

pub const OBJECTS: &[&str] = &[
    "red ball",
    "blue hat",
    "little drum",
    "silver bell",
    "wooden boat",
    "warm scarf",
    "golden key",
    "kite",
    "lantern",
    "green umbrella",
    "small basket",
    "music box",
    "magic stone",
    "storybook",
];
pub const SNACKS: &[&str] = &[
    "berries",
    "honey cake",
    "warm bread",
    "apples",
    "nuts",
    "cookies",
    "soup",
    "pancakes",
    "cherries",
    "hot chocolate",
];
