"""What a record is: Avro schemas, typed frozen records, codecs and canonical JSON."""
