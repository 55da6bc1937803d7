//! `strftime_now`: today's date in a prompt, in UTC, because the server's time zone means nothing
//! to the model.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The present time in Python's `strftime` notation.
pub(super) fn now(format: &str) -> Result<String, Error> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    strftime(format, seconds)
}

/// `seconds` since 1970 in the notation of `strftime`. Only dates and times of day are supported.
fn strftime(format: &str, seconds: u64) -> Result<String, Error> {
    let days = seconds / 86_400;
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let (year, month, day) = civil(days);
    // The first of January 1970 was a Thursday.
    let weekday = ((days + 3) % 7) as usize;
    let month_name = MONTHS[month as usize - 1];
    let mut text = String::with_capacity(format.len() + 16);
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        let mut code = letters.next();
        let unpadded = code == Some('-');
        if unpadded {
            code = letters.next();
        }
        let two = |number: u64| {
            if unpadded {
                number.to_string()
            } else {
                format!("{number:02}")
            }
        };
        match code {
            Some('Y') => text.push_str(&year.to_string()),
            Some('y') => text.push_str(&two(year % 100)),
            Some('m') => text.push_str(&two(month)),
            Some('d') => text.push_str(&two(day)),
            Some('e') => text.push_str(&format!("{day:2}")),
            Some('H') => text.push_str(&two(hour)),
            Some('I') => text.push_str(&two((hour + 11) % 12 + 1)),
            Some('p') => text.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => text.push_str(&two(minute)),
            Some('S') => text.push_str(&two(second)),
            Some('B') => text.push_str(month_name),
            Some('b' | 'h') => text.push_str(&month_name[..3]),
            Some('A') => text.push_str(DAYS[weekday]),
            Some('a') => text.push_str(&DAYS[weekday][..3]),
            Some('F') => text.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => text.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('Z') => text.push_str("UTC"),
            Some('%') => text.push('%'),
            other => {
                let code = other.map_or_else(String::new, String::from);
                let message = format!("strftime_now does not know %{code}");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
    }
    Ok(text)
}

/// Year, month and day of a day counted from 1970. It counts in cycles of 400 years, with years
/// that begin in March, so that a leap day comes last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    (400 * era + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_written_as_python_writes_them() {
        // date -u -d @<seconds>
        let cases = [
            (0, "Thursday 01 January 1970 00:00:00"),
            (951_782_399, "Monday 28 February 2000 23:59:59"),
            (951_782_400, "Tuesday 29 February 2000 00:00:00"),
            (1_709_164_800, "Thursday 29 February 2024 00:00:00"),
            (1_735_689_599, "Tuesday 31 December 2024 23:59:59"),
            (4_107_542_400, "Monday 01 March 2100 00:00:00"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(strftime("%A %d %B %Y %H:%M:%S", seconds).unwrap(), expected);
        }
        let noon = 1_709_164_800 + 13 * 3600 + 5 * 60;
        assert_eq!(
            strftime("%a %b %-d %y, %I:%M %p 100%%", noon).unwrap(),
            "Thu Feb 29 24, 01:05 PM 100%"
        );
        assert_eq!(
            strftime("%F %T %-m", noon).unwrap(),
            "2024-02-29 13:05:00 2"
        );
    }

    #[test]
    fn an_unknown_code_is_an_error_that_names_it() {
        for format in ["%Q", "%", "%-"] {
            assert!(
                strftime(format, 0)
                    .unwrap_err()
                    .to_string()
                    .contains("strftime_now")
            );
        }
    }

    #[test]
    fn now_is_after_this_was_written() {
        assert!(now("%Y").unwrap().parse::<u32>().unwrap() >= 2026);
    }
}
