/** Properties that this process passes on to the programs it starts, and its alarm. */
import { bindFunction, bindSystemCall } from './system-call.ts'

const CLOSE_RANGE_CLOEXEC = 4
const PR_SET_THP_DISABLE = 41
const UINT_MAX = 0xffff_ffff

const closeRange = bindSystemCall('int close_range(uint first, uint last, int flags)')
const prctl = bindFunction('int prctl(int option, ulong a, ulong b, ulong c, ulong d)')
const alarm = bindFunction('uint alarm(uint seconds)')

/** Programs started from now on inherit no descriptor above stderr, except those that are passed to them explicitly. */
export const closeDescriptorsOnExec = (): void => void closeRange(3, UINT_MAX, CLOSE_RANGE_CLOEXEC)

/**
 * Disables transparent huge pages for this process and the programs it starts. QEMU asks for huge pages for the code it
 * translates and would get 2 MiB for a few KiB. In the guest's memory, one write to a huge page would make a pause save
 * 512 pages instead of one.
 */
export const disableHugePages = (): void => void prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) // Fails only where there are none.

/** SIGALRM ends the process after this time. */
export const setAlarm = (seconds: number): void => void alarm(seconds)
