package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"time"
)

// tracking is what `chronyc tracking` shows, asked of the daemon itself over its command port.
type tracking struct {
	referenceID    uint32
	stratum        uint16
	leap           uint16
	referenceTime  time.Time
	correction     float64
	rootDelay      float64
	rootDispersion float64
	updateInterval float64
}

// Version 6 of the protocol, which chrony has spoken since 2.0 (2015).
const (
	protocolVersion = 6
	packetRequest   = 1
	packetReply     = 2
	commandTracking = 33
	replyTracking   = 5
	// Requests are as long as their replies, so that nobody can use the daemon as an amplifier.
	packetLength = 104
	replyHeader  = 28
)

func readTracking(address string, timeout time.Duration, attempts int) (*tracking, error) {
	connection, err := net.Dial("udp", address)
	if err != nil {
		return nil, fmt.Errorf("chronyd at %s: %w", address, err)
	}
	defer connection.Close()
	for attempt := range attempts {
		sequence := uint32(time.Now().UnixNano())
		if err = ask(connection, sequence, attempt, timeout); err != nil {
			continue
		}
		buffer := make([]byte, 1024)
		var length int
		// Answers to earlier questions may still be on their way.
		for err == nil {
			if length, err = connection.Read(buffer); err != nil {
				break
			}
			if length >= 20 && binary.BigEndian.Uint32(buffer[16:]) == sequence {
				return parseTracking(buffer[:length])
			}
		}
	}
	return nil, fmt.Errorf("chronyd does not answer at %s: %w", address, err)
}

func ask(connection net.Conn, sequence uint32, attempt int, timeout time.Duration) error {
	packet := make([]byte, packetLength)
	packet[0], packet[1] = protocolVersion, packetRequest
	binary.BigEndian.PutUint16(packet[4:], commandTracking)
	binary.BigEndian.PutUint16(packet[6:], uint16(attempt))
	binary.BigEndian.PutUint32(packet[8:], sequence)
	if err := connection.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	_, err := connection.Write(packet)
	return err
}

func parseTracking(packet []byte) (*tracking, error) {
	if packet[0] != protocolVersion || packet[1] != packetReply {
		return nil, fmt.Errorf("chronyd answers in protocol %d, expected %d", packet[0], protocolVersion)
	}
	if status := binary.BigEndian.Uint16(packet[8:]); status != 0 {
		return nil, fmt.Errorf("chronyd refuses to say (status %d)", status)
	}
	if len(packet) < packetLength || binary.BigEndian.Uint16(packet[6:]) != replyTracking {
		return nil, errors.New("chronyd answers something else than was asked")
	}
	data := packet[replyHeader:]
	number := func(at int) float64 { return chronyFloat(binary.BigEndian.Uint32(data[at:])) }
	seconds := uint64(binary.BigEndian.Uint32(data[28:]))<<32 | uint64(binary.BigEndian.Uint32(data[32:]))
	return &tracking{
		referenceID:    binary.BigEndian.Uint32(data),
		stratum:        binary.BigEndian.Uint16(data[24:]),
		leap:           binary.BigEndian.Uint16(data[26:]),
		referenceTime:  time.Unix(int64(seconds), int64(binary.BigEndian.Uint32(data[36:]))),
		correction:     number(40),
		rootDelay:      number(64),
		rootDispersion: number(68),
		updateInterval: number(72),
	}, nil
}

// chronyFloat reads chrony's own format: 7 bits of exponent, 25 of coefficient, both signed.
func chronyFloat(bits uint32) float64 {
	exponent := int32(bits) >> 25
	coefficient := int32(bits<<7) >> 7
	return float64(coefficient) * math.Pow(2, float64(exponent-25))
}
