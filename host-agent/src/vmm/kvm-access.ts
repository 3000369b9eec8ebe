/** Who may use /dev/kvm. QEMU runs as a user without privileges, so that the host agent, as root, can open it proves nothing. */
import { type Stats, statSync } from 'node:fs'

export const KVM_DEVICE = '/dev/kvm'

const READ_WRITE = 0o6

/** The groups with which QEMU may open the device: none are needed, or one. Undefined if QEMU cannot open it. */
export function findKvmGroups({ mode, gid }: Pick<Stats, 'mode' | 'gid'> = statSync(KVM_DEVICE)): number[] | undefined {
  if ((mode & READ_WRITE) === READ_WRITE) return []
  // Distributions create it with mode 0660 and the group `kvm`. That of root would open much else.
  const isOpenToGroup = ((mode >> 3) & READ_WRITE) === READ_WRITE
  return isOpenToGroup && gid !== 0 ? [gid] : undefined
}
