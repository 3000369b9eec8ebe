/**
 * The two guests of the KVM probe, as machine code.
 *
 * Stage A is real mode, which even a KVM without hardware support (PVM) emulates well enough. Stage B does what a stock
 * kernel does first: 64-bit ring 0 with paging, control registers, an MSR, cpuid, SSE, and a loop that is too long for an
 * emulator to finish in time. Each stage ends by writing a number to a port.
 */
export const STAGES = ['A', 'B'] as const
export type Stage = (typeof STAGES)[number]

/** One large page, as mapped by the page directory below. */
export const GUEST_MEMORY_BYTES = 2 * 1024 ** 2
export const CODE_ADDRESS = 0x1000
const PML4_ADDRESS = 0x2000
const PDPT_ADDRESS = 0x3000
const PD_ADDRESS = 0x4000

export const RESULT_PORT = 0x10
/** What the guest of each stage writes to the port. */
export const STAGE_VALUE = { A: 42, B: 1_000_000 } as const satisfies Record<Stage, number>

const STAGE_CODE = {
  A: [
    [0xb0, 0x2a], //                         mov $42,%al
    [0xe6, 0x10], //                         out %al,$0x10
    [0xf4], //                               hlt
  ],
  B: [
    [0x0f, 0x20, 0xd8], //                   mov %cr3,%rax
    [0x0f, 0x22, 0xd8], //                   mov %rax,%cr3
    [0x0f, 0x20, 0xe0], //                   mov %cr4,%rax
    [0x48, 0x0d, 0x00, 0x06, 0x00, 0x00], // or $0x600,%rax          OSFXSR, OSXMMEXCPT: allow SSE
    [0x0f, 0x22, 0xe0], //                   mov %rax,%cr4
    [0x0f, 0x20, 0xc0], //                   mov %cr0,%rax
    [0x48, 0x83, 0xe0, 0xfb], //             and $~4,%rax            no EM: do not trap floating point
    [0x48, 0x83, 0xc8, 0x02], //             or $2,%rax              MP
    [0x0f, 0x22, 0xc0], //                   mov %rax,%cr0
    [0xb9, 0x80, 0x00, 0x00, 0xc0], //       mov $0xc0000080,%ecx    EFER
    [0x0f, 0x32], //                         rdmsr
    [0x0f, 0x30], //                         wrmsr
    [0x31, 0xc0], //                         xor %eax,%eax
    [0x0f, 0xa2], //                         cpuid                   fills %rbx
    [0x66, 0x48, 0x0f, 0x6e, 0xc3], //       movq %rbx,%xmm0
    [0x66, 0x0f, 0xef, 0xc0], //             pxor %xmm0,%xmm0
    [0x66, 0x48, 0x0f, 0x7e, 0xc3], //       movq %xmm0,%rbx         0, if SSE works
    [0xb9, 0x40, 0x42, 0x0f, 0x00], //       mov $1000000,%ecx
    [0x48, 0x8d, 0x5b, 0x01], //          1: lea 1(%rbx),%rbx
    [0xff, 0xc9], //                         dec %ecx
    [0x75, 0xf8], //                         jnz 1b                  8 bytes back
    [0x89, 0xd8], //                         mov %ebx,%eax
    [0x66, 0xba, 0x10, 0x00], //             mov $0x10,%dx
    [0xef], //                               out %eax,%dx
    [0xf4], //                               hlt
  ],
} as const satisfies Record<Stage, readonly (readonly number[])[]>

export const stageCode = (stage: Stage): Buffer => Buffer.from(STAGE_CODE[stage].flat())

const PRESENT_WRITABLE = 0x3
const PRESENT_WRITABLE_LARGE = 0x83

/** The guest's memory: code, and page tables that map the 2 MiB to themselves (stage A does not use them). */
export function guestMemory(stage: Stage): Buffer {
  const memory = Buffer.alloc(GUEST_MEMORY_BYTES)
  stageCode(stage).copy(memory, CODE_ADDRESS)
  memory.writeBigUInt64LE(BigInt(PDPT_ADDRESS | PRESENT_WRITABLE), PML4_ADDRESS)
  memory.writeBigUInt64LE(BigInt(PD_ADDRESS | PRESENT_WRITABLE), PDPT_ADDRESS)
  memory.writeBigUInt64LE(BigInt(0 | PRESENT_WRITABLE_LARGE), PD_ADDRESS)
  return memory
}

/** struct kvm_regs: 18 registers of 8 bytes, the last two rip and rflags. */
export const REGS_BYTES = 18 * 8

export function startRegs(): Buffer {
  const regs = Buffer.alloc(REGS_BYTES)
  regs.writeBigUInt64LE(BigInt(CODE_ADDRESS), REGS_BYTES - 16)
  regs.writeBigUInt64LE(2n, REGS_BYTES - 8) // bit 1 of rflags is always set
  return regs
}

/** struct kvm_sregs: cs ds es fs gs ss tr ldt (24 bytes each), gdt, idt (16 each), cr0 cr2 cr3 cr4 cr8 efer, … */
export const SREGS_BYTES = 312
const SEGMENT_BYTES = 24
const DATA_SEGMENTS = [1, 2, 3, 4, 5]
const CR0_OFFSET = 224
const CR3_OFFSET = 240
const CR4_OFFSET = 248
const EFER_OFFSET = 264

/** Turns the registers of a vCPU after reset into those the stage starts with. */
export function startSregs(stage: Stage, reset: Buffer): Buffer {
  const sregs = Buffer.from(reset)
  if (stage === 'A') {
    // After reset the code segment points at the firmware below 4 GiB; the probe's code is at 0.
    sregs.writeBigUInt64LE(0n, 0)
    sregs.writeUInt16LE(0, 12)
    return sregs
  }
  flatSegment({ selector: 0x8, type: 0xb, long: 1 }).copy(sregs, 0)
  for (const index of DATA_SEGMENTS) {
    flatSegment({ selector: 0x10, type: 0x3, long: 0 }).copy(sregs, index * SEGMENT_BYTES)
  }
  sregs.writeBigUInt64LE(0x80000031n, CR0_OFFSET) // PG, NE, ET, PE
  sregs.writeBigUInt64LE(BigInt(PML4_ADDRESS), CR3_OFFSET)
  sregs.writeBigUInt64LE(0x20n, CR4_OFFSET) // PAE
  sregs.writeBigUInt64LE(0x500n, EFER_OFFSET) // LMA, LME
  return sregs
}

/** struct kvm_segment of a segment over all addresses; `type` is 0xb for code, 0x3 for data. */
function flatSegment({ selector, type, long }: { selector: number; type: number; long: 0 | 1 }): Buffer {
  const segment = Buffer.alloc(SEGMENT_BYTES)
  segment.writeUInt32LE(0xffffffff, 8)
  segment.writeUInt16LE(selector, 12)
  // type, present, dpl, db (32-bit, which long mode excludes), s (not a system segment), l, g (limit in pages)
  segment.set([type, 1, 0, long ? 0 : 1, 1, long, 1], 14)
  return segment
}
