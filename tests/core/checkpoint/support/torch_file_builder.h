// Small files as torch writes them, made by hand, for what torch itself never writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshrun::testing {

// Least significant byte first.
inline std::string Little(uint64_t number, int bytes) {
  std::string text;
  for (int k = 0; k < bytes; ++k) text += k < 8 ? static_cast<char>(number >> (8 * k)) : 0;
  return text;
}

// Pieces of a pickle. Each leaves one value on the stack.
inline std::string Int(int64_t number) {
  return "\x8a\x08" + Little(static_cast<uint64_t>(number), 8);
}
inline std::string Text(std::string_view text) {
  return "X" + Little(text.size(), 4) + std::string(text);
}
inline std::string Name(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}
inline std::string Tuple(const std::vector<std::string>& items) {
  std::string all = "(";
  for (const std::string& item : items) all += item;
  return all + "t";
}
inline std::string List(const std::vector<std::string>& items) {
  std::string all = "](";
  for (const std::string& item : items) all += item;
  return all + "e";
}
// Keys and values in turn.
inline std::string Dict(const std::vector<std::string>& items) {
  std::string all = "}(";
  for (const std::string& item : items) all += item;
  return all + "u";
}
inline std::string Call(const std::string& name, const std::vector<std::string>& arguments) {
  return name + Tuple(arguments) + "R";
}
// An object of a class with these fields.
inline std::string Object(const std::string& name, const std::vector<std::string>& fields) {
  return name + ")\x81" + Dict(fields) + "b";
}
inline std::string Numbers(const std::vector<int64_t>& numbers) {
  std::vector<std::string> items;
  for (const int64_t number : numbers) items.push_back(Int(number));
  return Tuple(items);
}
inline std::string PickleOf(const std::string& value) { return "\x80\x02" + value + "."; }

// A float32 tensor over the storage `key` of `elements`.
inline std::string FloatTensor(std::string_view key, int64_t elements, int64_t offset,
                               const std::vector<int64_t>& shape,
                               const std::vector<int64_t>& strides) {
  const std::string storage = Tuple({Text("storage"), Name("torch", "FloatStorage"), Text(key),
                                     Text("cpu"), Int(elements)}) +
                              "Q";
  return Call(Name("torch._utils", "_rebuild_tensor_v2"),
              {storage, Int(offset), Numbers(shape), Numbers(strides), "\x89",
               Call(Name("collections", "OrderedDict"), {})});
}

// A zip, member by member.
class ZipBuilder {
 public:
  // `method` is what the zip says of the content, which is stored as it is.
  ZipBuilder& Add(const std::string& name, const std::string& content, uint16_t method = 0,
                  bool zip64 = false) {
    const std::string wide =
        Little(content.size(), 8) + Little(content.size(), 8) + Little(body_.size(), 8);
    const std::string extra = zip64 ? Little(1, 2) + Little(wide.size(), 2) + wide : "";
    const uint64_t size = zip64 ? 0xFFFFFFFF : content.size();
    const std::string middle = Little(0, 2) + Little(method, 2) + Little(0, 4) + Little(0, 4) +
                               Little(size, 4) + Little(size, 4) + Little(name.size(), 2);
    directory_ += "PK\x01\x02" + Little(20, 2) + Little(20, 2) + middle + Little(extra.size(), 2) +
                  Little(0, 10) + Little(zip64 ? 0xFFFFFFFF : body_.size(), 4) + name + extra;
    body_ += "PK\x03\x04" + Little(20, 2) + middle + Little(0, 2) + name + content;
    ++count_;
    return *this;
  }

  std::string Finish(bool zip64 = false) const {
    std::string all = body_ + directory_;
    if (zip64) {
      const uint64_t end = all.size();
      all += "PK\x06\x06" + Little(44, 8) + Little(45, 2) + Little(45, 2) + Little(0, 8) +
             Little(count_, 8) + Little(count_, 8) + Little(directory_.size(), 8) +
             Little(body_.size(), 8);
      all += "PK\x06\x07" + Little(0, 4) + Little(end, 8) + Little(1, 4);
    }
    return all + "PK\x05\x06" + Little(0, 4) + Little(zip64 ? 0xFFFF : count_, 2) +
           Little(zip64 ? 0xFFFF : count_, 2) + Little(zip64 ? 0xFFFFFFFF : directory_.size(), 4) +
           Little(zip64 ? 0xFFFFFFFF : body_.size(), 4) + Little(0, 2);
  }

 private:
  std::string body_;
  std::string directory_;
  uint64_t count_ = 0;
};

// A torch.save() file of a pickle and its storages, "0" on.
inline std::string TorchFile(const std::string& value,
                             const std::vector<std::string>& storages = {}) {
  ZipBuilder zip;
  zip.Add("archive/data.pkl", PickleOf(value)).Add("archive/byteorder", "little");
  for (size_t k = 0; k < storages.size(); ++k) {
    zip.Add("archive/data/" + std::to_string(k), storages[k]);
  }
  return zip.Finish();
}

}  // namespace meshrun::testing
