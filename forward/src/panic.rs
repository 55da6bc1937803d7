//! The text of a caught panic.

use std::any::Any;

/// The message of a panic that `catch_unwind` caught, or a placeholder where the panic
/// carried no text. Drivers and libraries panic where they should return an error, so every
/// crate that calls them needs this.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::panic_text;
    use std::panic::catch_unwind;

    #[test]
    fn the_text_is_found_whether_it_was_formatted_or_not() {
        let number = 7;
        let formatted = catch_unwind(|| panic!("slot {number}")).unwrap_err();
        let plain = catch_unwind(|| panic!("slot")).unwrap_err();
        let other = catch_unwind(|| std::panic::panic_any(7)).unwrap_err();
        assert_eq!(panic_text(&*formatted), "slot 7");
        assert_eq!(panic_text(&*plain), "slot");
        assert_eq!(panic_text(&*other), "without a message");
    }
}
