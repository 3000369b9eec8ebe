import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  CODE_ADDRESS,
  GUEST_MEMORY_BYTES,
  guestMemory,
  REGS_BYTES,
  SREGS_BYTES,
  STAGE_VALUE,
  stageCode,
  startRegs,
  startSregs,
} from './guest.ts'

const B = stageCode('B')

test('the code of stage B is what an assembler produces', () => {
  // `as` on the instructions in the comments of guest.ts, then `objcopy -O binary`.
  const assembled =
    '0f20d8 0f22d8 0f20e0 480d00060000 0f22e0 0f20c0 4883e0fb 4883c802 0f22c0 b9800000c0 0f32 0f30 31c0 0fa2 ' +
    '66480f6ec3 660fefc0 66480f7ec3 b940420f00 488d5b01 ffc9 75f8 89d8 66ba1000 ef f4'

  assert.equal(B.toString('hex'), assembled.replaceAll(' ', ''))
})

test('the loop of stage B jumps back to its first instruction', () => {
  const loopStart = B.indexOf(Buffer.from('488d5b01', 'hex')) // lea 1(%rbx),%rbx
  const jump = B.indexOf(Buffer.from('75', 'hex'), loopStart)

  const target = jump + 2 + B.readInt8(jump + 1)

  assert.equal(target, loopStart)
})

test('the loop of stage B counts to its expected number', () => {
  const loopStart = B.indexOf(Buffer.from('488d5b01', 'hex'))

  assert.equal(B[loopStart - 5], 0xb9) // mov $imm32,%ecx
  assert.equal(B.readUInt32LE(loopStart - 4), STAGE_VALUE.B)
})

test('stage A writes its expected number to port 0x10', () => {
  assert.deepEqual([...stageCode('A')], [0xb0, STAGE_VALUE.A, 0xe6, 0x10, 0xf4])
})

test('the code is where execution starts, and page tables do not overlap it', () => {
  const memory = guestMemory('B')

  assert.equal(memory.length, GUEST_MEMORY_BYTES)
  assert.deepEqual(memory.subarray(CODE_ADDRESS, CODE_ADDRESS + B.length), B)
  assert.equal(startRegs().readBigUInt64LE(REGS_BYTES - 16), BigInt(CODE_ADDRESS))
})

test('a page table walk maps the 2 MiB to themselves and nothing else', () => {
  const cr3 = Number(startSregs('B', Buffer.alloc(SREGS_BYTES)).readBigUInt64LE(240))

  assert.equal(translate(cr3, CODE_ADDRESS), CODE_ADDRESS)
  assert.equal(translate(cr3, GUEST_MEMORY_BYTES - 1), GUEST_MEMORY_BYTES - 1)
  assert.equal(translate(cr3, GUEST_MEMORY_BYTES), undefined)
  assert.equal(translate(cr3, 2 ** 30), undefined)
  assert.equal(translate(cr3, 2 ** 39), undefined)
})

test('stage B starts in 64-bit mode: paging, PAE, long mode active, a long code segment', () => {
  const sregs = startSregs('B', Buffer.alloc(SREGS_BYTES))

  assert.equal(sregs.readBigUInt64LE(224), 0x80000031n)
  assert.equal(sregs.readBigUInt64LE(248), 0x20n)
  assert.equal(sregs.readBigUInt64LE(264), 0x500n)
  // type 0xb (code), present, dpl 0, db 0, s 1, l 1, g 1
  assert.deepEqual([...sregs.subarray(14, 21)], [0xb, 1, 0, 0, 1, 1, 1])
})

test('stage A only moves the code segment to 0 and leaves the rest of the reset state', () => {
  const reset = Buffer.alloc(SREGS_BYTES, 0xab)

  const sregs = startSregs('A', reset)

  assert.equal(sregs.readBigUInt64LE(0), 0n)
  assert.equal(sregs.readUInt16LE(12), 0)
  assert.deepEqual(sregs.subarray(14), reset.subarray(14))
  assert.equal(reset[0], 0xab)
})

/** Four levels of tables, 9 bits each, large pages at the third. */
function translate(cr3: number, virtual: number): number | undefined {
  const memory = guestMemory('B')
  let table = cr3
  for (const shift of [39, 30, 21]) {
    const entry = Number(memory.readBigUInt64LE(table + (Math.floor(virtual / 2 ** shift) % 512) * 8))
    const present = (entry & 1) === 1
    if (!present) return undefined
    const large = (entry & 0x80) !== 0
    const address = entry - (entry % 4096)
    if (large) return address + (virtual % 2 ** shift)
    table = address
  }
  return undefined
}
