//! Sizes as people write and read them: `64M`, `1.5G`, `4096`. The letters are powers of 1024.

const UNITS: [(char, u32); 4] = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];

/// Reads a size: a whole number of bytes, or a number followed by K, M, G or T.
///
/// # Errors
///
/// If it is none, or more than 16 EiB; the text says how a size is written.
pub fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("`{text}` is no size: write bytes, or a number with K, M, G or T");
    let trimmed = text.trim();
    let last = trimmed.chars().next_back().ok_or_else(bad)?;
    let unit = UNITS.iter().find(|(letter, _)| letter.eq_ignore_ascii_case(&last));
    let (number, shift) = match unit {
        Some((_, shift)) => (&trimmed[..trimmed.len() - 1], *shift),
        None => (trimmed, 0),
    };
    if !number.bytes().next().is_some_and(|byte| byte.is_ascii_digit()) {
        return Err(bad());
    }
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(1 << shift)
            .ok_or_else(|| format!("`{text}` is more than 16 EiB"));
    }
    let number_is_decimal = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    match number.parse::<f64>() {
        Ok(decimal) if shift > 0 && number_is_decimal && decimal < 1e9 => {
            Ok((decimal * (1u64 << shift) as f64) as u64)
        }
        _ => Err(bad()),
    }
}

/// Writes a size for people: three significant digits and a binary unit.
#[must_use]
pub fn text(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0);
    let Some((letter, shift)) = unit else { return format!("{bytes} B") };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let digits = if value >= 100.0 || bytes.is_multiple_of(1 << shift) { 0 } else { 1 };
    format!("{value:.digits$} {letter}iB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_powers_of_1024_and_a_plain_number_is_bytes() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("4K"), Ok(4096));
        assert_eq!(parse("64m"), Ok(64 << 20));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("2T"), Ok(2 << 40));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for bad in ["", "K", "-1", "1.5", "1e9", "4KB", "0x10", "99999999999999999999", "nanK"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("17000000T").unwrap_err().contains("16 EiB"));
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1023), "1023 B");
        assert_eq!(text(64 << 20), "64 MiB");
        assert_eq!(text((1 << 30) + (1 << 29)), "1.5 GiB");
        assert_eq!(text(300 * 1024 + 1), "300 KiB");
    }
}
