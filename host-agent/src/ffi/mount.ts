/** Mounts, as named network namespaces need them. */
import { bindSystemCall } from './system-call.ts'

const MS_BIND = 1 << 12
const MS_REC = 1 << 14
const MS_SHARED = 1 << 20
const MNT_DETACH = 2

const mount = bindSystemCall('int mount(str source, str target, str type, ulong flags, void *data)')
const umount2 = bindSystemCall('int umount2(str target, int flags)')

export const bindMount = (source: string, target: string): void => void mount(source, target, 'none', MS_BIND, null)

/** Makes later mounts below `target` visible in other mount namespaces. EINVAL: nothing is mounted on `target`. */
export const shareMount = (target: string): void => void mount('none', target, 'none', MS_SHARED | MS_REC, null)

/** Removes the mount immediately; the kernel frees what was mounted when its last user closes it. */
export const detachMount = (target: string): void => void umount2(target, MNT_DETACH)
